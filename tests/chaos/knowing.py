"""What a right answer is: a function of the prompt alone with the synthetic engine, the reference's draws
with a real model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.engine.api import SamplingParams
from shared.engine.synthetic import synthetic_run
from tests.chaos.asking import Ask
from tests.chaos.judging import Tally
from tests.support.small_tokenizer import EOS


class Synthetic:
    """The ids are known before they are told."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab

    def expected(self, ask: Ask) -> Sequence[int]:
        params = SamplingParams(
            max_pos=len(ask.prompt) + ask.max_tokens,
            seed=ask.seed,
            temperature=ask.temperature,
            stop_ids=() if ask.ignore_eos else (EOS,),
        )
        return synthetic_run(ask.prompt, params, self._vocab, len(ask.prompt))

    def ended(self, ask: Ask) -> None:
        """Known already."""


class Replayed:
    """Answers are kept, and forced through the reference once the mesh has nothing more to do (I7)."""

    def __init__(self) -> None:
        self._asks: list[Ask] = []

    def expected(self, ask: Ask) -> None:
        return None

    def ended(self, ask: Ask) -> None:
        if ask.told:
            self._asks.append(ask)

    def judge(self, model: Path, eos: int, tally: Tally) -> None:
        """Count ids that the reference would not have drawn, and answers of a wrong length."""
        from tests.support.reference import Reference
        from tests.support.replay import combined, replay

        reference = Reference.load(model)
        found = []
        for ask in self._asks:
            rules = {
                "temperature": ask.temperature,
                "seed": ask.seed,
                "eos_ids": () if ask.ignore_eos else (eos,),
            }
            one = replay(reference, ask.prompt, ask.told, rules)
            found.append(one)
            tally.wrong += len(one.wrong)
            if one.wrong:
                tally.notes.append(f"{ask.id} of {len(ask.prompt)} ids: {one}")
            self._ends(ask, eos, tally)
        whole = combined(found)
        if not whole.ok:
            tally.wrong += 1
            tally.notes.append(f"all answers: {whole}")

    def _ends(self, ask: Ask, eos: int, tally: Tally) -> None:
        stopped = not ask.ignore_eos and ask.told[-1] == eos
        if ask.done and not stopped and len(ask.told) < ask.max_tokens:
            tally.missing += ask.max_tokens - len(ask.told)
            tally.notes.append(f"{ask.id} ended after {len(ask.told)} of {ask.max_tokens} ids")
        tally.duplicated += max(0, len(ask.told) - ask.max_tokens)
