"""Judges what a live mesh answered: ids against the reference by replay, counts, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from shared.engine.api import SamplingParams
from shared.engine.synthetic import synthetic_run
from tests.support.live_client import Answer
from tests.support.reference import Reference
from tests.support.replay import Replay, combined, replay
from tests.support.tiny_model import EOS_ID

T = TypeVar("T")

NOT_SAMPLING = ("stop_token_ids", "ignore_eos", "logprobs", "stop", "n", "include_stop_str_in_output")


def rules_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A request's fields as those of the reference's rules; what is left out is greedy."""
    rules = {name: value for name, value in fields.items() if name not in NOT_SAMPLING}
    if "logit_bias" in rules:
        rules["logit_bias"] = {int(name): bias for name, bias in rules["logit_bias"].items()}
    rules.setdefault("temperature", 0.0)
    rules["stop_ids"] = tuple(fields.get("stop_token_ids", ()))
    rules["eos_ids"] = () if fields.get("ignore_eos") else (EOS_ID,)
    return rules


class Judge:
    """Collects answers; `verdict` fails where their draws are not the reference's."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._replays: list[Replay] = []

    def take(self, prompt: Sequence[int], answer: Answer, max_tokens: int, **fields: Any) -> None:
        """One whole answer."""
        rules = rules_of(fields)
        check_end(prompt, answer, max_tokens, {*rules["stop_ids"], *rules["eos_ids"]}, fields)
        found = replay(self._reference, prompt, answer.ids, rules)
        assert found.ok, f"{found}\n{answer}"
        self._replays.append(found)

    def verdict(self) -> None:
        assert self._replays
        found = combined(self._replays)
        assert found.ok, found


def check_end(
    prompt: Sequence[int], answer: Answer, max_tokens: int, ends: set[int], fields: Mapping[str, Any]
) -> None:
    """Counts, and the reason of the end (E1): no id too many, none too few."""
    made = len(answer.ids)
    assert answer.error is None, answer
    assert answer.prompt == list(prompt)
    assert answer.usage["prompt_tokens"] == len(prompt)
    assert answer.usage["completion_tokens"] == made
    assert not ends & set(answer.ids[:-1][fields.get("min_tokens", 0) :]), answer.ids
    if answer.finish == "length":
        assert made == max_tokens
        assert answer.ids[-1] not in ends
    else:
        assert answer.finish == "stop"
        assert answer.ids[-1] in ends or "stop" in fields
        assert made <= max_tokens
    assert sum(answer.owners.values()) >= made
    if "logprobs" in fields:
        assert len(answer.logprobs) == made
        assert all(one <= 0 for one in answer.logprobs)


def synthetic_answer(prompt: Sequence[int], max_tokens: int, vocab: int, **sampling: Any) -> list[int]:
    """What the synthetic engine must answer."""
    params = SamplingParams(max_pos=len(prompt) + max_tokens, **{"seed": 0, "temperature": 0.0, **sampling})
    return synthetic_run(prompt, params, vocab, len(prompt))


async def crowd(*asks: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines together; the first failure is raised once all have ended."""
    done = await asyncio.gather(*asks, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]
