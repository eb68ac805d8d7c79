"""How many new tokens a step may take beside decodes before it takes too long for them. No clock.

Learnt from the steps themselves, so that one setting fits a laptop and a GPU: what a step of decodes alone
takes, and what each further token adds.
"""

from __future__ import annotations

import statistics
from collections import deque

from shared.engine.api import StepPlan, StepResult

RECENT = 16
LEAST = 8
"""Tokens that an extend gets in any step: it always goes on."""


class Pace:
    """`stretch`: the longest step with decodes in it, as a multiple of a step of decodes alone."""

    def __init__(self, stretch: float) -> None:
        self._stretch = stretch
        self._decodes: deque[float] = deque(maxlen=RECENT)
        self._tokens: deque[float] = deque(maxlen=RECENT)

    def applied(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step. One without decodes teaches only while no mixed one has been seen."""
        decodes = sum(len(item.ids) == 1 for item in plan.items)
        extended = sum(len(item.ids) for item in plan.items) - decodes
        if decodes and not extended:
            self._decodes.append(result.seconds)
        elif extended and decodes and self._decodes:
            self._tokens.append(max(result.seconds - statistics.median(self._decodes), 0.0) / extended)
        elif extended >= LEAST and not self._tokens:
            self._tokens.append(result.seconds / extended)

    def room(self, most: int) -> int:
        """New tokens beside decodes, `most` where nothing is known yet."""
        if not self._decodes or not self._tokens:
            return most
        token = statistics.median(self._tokens)
        spare = (self._stretch - 1) * statistics.median(self._decodes)
        if token * most <= spare:
            return most
        return min(most, max(LEAST, int(spare / token)))
