"""How many new tokens a step may take before it takes too long: for decodes beside it, for a sign of life. No
clock.

Learnt from the steps themselves, so that one setting fits a laptop and a GPU: a step takes so much, so much
more for each decode, and so much for each token of an extend. The three are fitted together to the last
steps: decodes that have become more or fewer are not taken for dearer tokens.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shared.engine.api import StepPlan, StepResult

RECENT = 16
"""Steps of a kind that are looked back on."""

LEAST = 8
"""Tokens that an extend gets in any step: it always goes on."""

PROBE = 32
"""Steps with extends after which one has the least of them: what decodes take alone would not be seen again
while extends never cease."""

GROWTH = 4
"""Times as many tokens as any recent step had beside decodes: what small extends cost says little of large
ones."""

FIRST = 256
"""Tokens of the first steps without decodes, until one has told how long they take."""

_OLD = 4 * PROBE  # steps after which one is forgotten where there are newer ones of its kind
_SHORTEST = 1e-9  # seconds: no step takes less, and squares of its inverse are still numbers
_HALF = 32.0  # steps after which one counts half
_DOUBT = 0.003  # steps that the first guess weighs as much as: a decode costs what a token does


class _Step(NamedTuple):
    number: int
    decodes: int
    extended: int
    seconds: float


class _Cost(NamedTuple):
    """Seconds of a step."""

    base: float
    decode: float
    token: float


class Pace:
    """`stretch`: the longest step with decodes in it, as a multiple of a step of decodes alone."""

    def __init__(self, stretch: float) -> None:
        self._stretch = stretch
        self._light: deque[_Step] = deque(maxlen=RECENT)  # decodes, and the least of extends at most
        self._mixed: deque[_Step] = deque(maxlen=RECENT)
        self._alone: deque[_Step] = deque(maxlen=RECENT)  # extends without decodes
        self._number = 0

    def applied(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step. One without decodes teaches only while no mixed one has been seen."""
        decodes = sum(len(item.ids) == 1 for item in plan.items)
        extended = sum(len(item.ids) for item in plan.items) - decodes
        if result.seconds < _SHORTEST or not (decodes or extended >= LEAST):
            return
        self._number += 1
        step = _Step(self._number, decodes, extended, result.seconds)
        kind = self._alone if not decodes else self._light if extended <= LEAST else self._mixed
        kind.append(step)
        while self._number - kind[0].number > _OLD:
            kind.popleft()

    def room(self, decodes: int, most: int) -> int:
        """New tokens beside so many decodes, `most` where nothing is known yet."""
        dear = self._mixed or self._alone
        if not self._mixed and not (self._light and dear):
            return most
        least = min(most, LEAST)
        if self._probes():
            return least
        cost = _fit([*self._light, *dear], self._number)
        spare = (self._stretch - 1) * (cost.base + cost.decode * decodes)
        room = most if cost.token * most <= spare else int(spare / cost.token)
        if self._mixed:
            room = min(room, GROWTH * max(step.extended for step in self._mixed))
            if self._number - self._mixed[-1].number >= PROBE:  # no wrong estimate may keep itself alive
                room = max(room, 2 * LEAST)
        return max(least, min(most, room))

    def alone(self, seconds: float, most: int) -> int:
        """New tokens of a step without decodes, for it to take so long: `most` at most, a few at least."""
        seen = self._alone or self._mixed
        if not seen:
            return min(most, FIRST)
        fit = seconds * sum(step.extended for step in seen) / sum(step.seconds for step in seen)
        return min(most, max(LEAST, int(fit)))

    def _probes(self) -> bool:
        """Whether it is time to see decodes almost alone."""
        if not self._light:
            return True
        since = self._light[-1].number
        return sum(step.number > since for step in self._mixed) >= RECENT and self._number - since >= PROBE


def _fit(steps: Sequence[_Step], now: int) -> _Cost:
    """The costs that explain these steps best, none of them negative.

    Errors are judged as parts of what a step took: a step that something else held up for long weighs next
    to nothing.
    """
    middle = statistics.median(step.seconds for step in steps)
    rows = [_row(step, now, middle) for step in steps]
    guess = max(step.decodes for step in steps) / middle * _DOUBT**0.5
    rows.append((0.0, guess, -guess, 0.0))
    base, decode, token = _solved(rows, (0, 1, 2))
    if decode < 0:
        base, decode, token = _solved(rows[:-1], (0, 2))
    elif base < 0:
        base, decode, token = _solved(rows[:-1], (1, 2))
    return _Cost(max(base, 0.0), max(decode, 0.0), max(token, 0.0))


_Row = tuple[float, float, float, float]


def _row(step: _Step, now: int, middle: float) -> _Row:
    """A step's equation: what the base, a decode and a token are taken times, and what comes out."""
    weight = 0.5 ** ((now - step.number) / (2 * _HALF)) / max(step.seconds, middle)
    return weight, weight * step.decodes, weight * step.extended, weight * step.seconds


def _solved(rows: Iterable[_Row], unknowns: tuple[int, ...]) -> list[float]:
    """Least squares over some of the three unknowns; the others, and what nothing says, are 0."""
    table = [[0.0] * (len(unknowns) + 1) for _ in unknowns]
    for row in rows:
        values = [row[at] for at in unknowns] + [row[3]]
        for line, value in zip(table, values, strict=False):
            for at, other in enumerate(values):
                line[at] += value * other
    found = [0.0, 0.0, 0.0]
    for unknown, value in zip(unknowns, _eliminated(table), strict=True):
        found[unknown] = value
    return found


def _eliminated(table: list[list[float]]) -> list[float]:
    """Gauss and Jordan; the matrix is symmetric and has no negative eigenvalue: no pivots to choose."""
    said = [line[at] for at, line in enumerate(table)]
    for at, line in enumerate(table):
        if line[at] <= 1e-9 * said[at]:
            line[:] = [0.0] * len(line)
            line[at] = 1.0
        pivot = line[at]
        line[:] = [value / pivot for value in line]
        for other in table:
            if other is not line and other[at]:
                factor = other[at]
                other[:] = [value - factor * own for value, own in zip(other, line, strict=True)]
    return [line[-1] for line in table]
