"""The check that a mesh's tokens are the model's: its ids are forced through the reference, draw by draw.

Each draw is compared in the same context (the mesh's own ids so far), so that one excused difference does not
spoil the rest. The rules of a draw are in `tests.support.draw`. A difference is excused only where rounding
could have made it: the mesh's id would have been drawn had logits, or a top-k, top-p or min-p edge, moved by
`TOLERANCE`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.draw import Rules, Scores, draw
from tests.support.reference import Reference

TOLERANCE = 1e-3
EXCUSED_SHARE = 0.005
SPAN = 256  # positions whose logits are held at once


@dataclass(frozen=True)
class Difference:
    """One draw in which mesh and reference disagree. `position` is absolute, the prompt included."""

    position: int
    mesh: int
    reference: int
    excused: bool


@dataclass(frozen=True)
class Replay:
    """What replaying one or more outputs showed."""

    draws: int
    differences: tuple[Difference, ...] = ()
    neighbours: bool = False  # two excused draws in a row in one output

    @property
    def wrong(self) -> tuple[Difference, ...]:
        """Differences that rounding does not explain."""
        return tuple(each for each in self.differences if not each.excused)

    @property
    def ok(self) -> bool:
        """Nothing wrong, no two excused in a row, and at most 0.5% excused (one in a shorter output)."""
        allowed = max(1.0, EXCUSED_SHARE * self.draws)
        return not self.wrong and not self.neighbours and len(self.differences) <= allowed

    def __str__(self) -> str:
        shown = ", ".join(
            f"position {each.position}: {each.mesh} for {each.reference}" + " (excused)" * each.excused
            for each in self.differences[:8]
        )
        counts = f"{self.draws} draws, {len(self.differences)} different, {len(self.wrong)} of them wrong"
        return f"{counts}: {shown or 'none'}"


def replay(
    reference: Reference, prompt: Sequence[int], output: Sequence[int], sampling: Mapping[str, Any]
) -> Replay:
    """Compare every id of `output`, generated after `prompt`, with the reference's draw in that context.

    `sampling` has the fields of `tests.support.draw.Rules`; an unknown key is a TypeError.
    """
    rules = Rules(**sampling)
    ids = [*prompt, *output]
    found: list[Difference] = []
    for position, logits in _logits(reference, ids, len(prompt)):
        verdict = draw(logits, ids[:position], len(prompt), rules, TOLERANCE)
        if verdict.drawn != ids[position]:
            near = ids[position] in verdict.near
            found.append(Difference(position, ids[position], verdict.drawn, near))
    places = [each.position for each in found]
    neighbours = any(after - before == 1 for before, after in itertools.pairwise(places))
    return Replay(len(output), tuple(found), neighbours)


def combined(replays: Iterable[Replay]) -> Replay:
    """Many outputs judged together: the share of excused draws is then taken over all of them."""
    parts = list(replays)
    differences = tuple(each for part in parts for each in part.differences)
    return Replay(sum(part.draws for part in parts), differences, any(part.neighbours for part in parts))


def generate(
    reference: Reference, prompt: Sequence[int], sampling: Mapping[str, Any], max_tokens: int
) -> list[int]:
    """What the reference itself answers: at most `max_tokens` ids, a stop or eos id being the last."""
    rules = Rules(**sampling)
    ids, context = list(prompt), reference.context()
    logits = context.forward(ids, last=1)[-1]
    while len(ids) - len(prompt) < max_tokens:
        ids.append(draw(logits.double().numpy(), ids, len(prompt), rules).drawn)
        if ids[-1] in rules.ends:
            break
        logits = context.forward(ids[-1:])[-1]
    return ids[len(prompt) :]


def _logits(reference: Reference, ids: list[int], prompt_len: int) -> Iterable[tuple[int, Scores]]:
    """Each position from `prompt_len` on with the logits, (vocab,) float64, its id was drawn from."""
    context = reference.context()
    if prompt_len > 1:
        context.forward(ids[: prompt_len - 1], last=1)
    for start in range(prompt_len - 1, len(ids) - 1, SPAN):
        span = ids[start : min(start + SPAN, len(ids) - 1)]
        rows = context.forward(span).numpy().astype(np.float64)
        yield from enumerate(rows, start + 1)
