"""A runner whose draws keep to grammars: what may be drawn is found out before the step, for any runner.

The state of a sequence in its grammar is kept from step to step and follows from its ids alone: a sequence
that comes from elsewhere, with ids that were drawn there, is caught up in its first step.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from shared.engine.api import Draw, Runner, StepPlan, StepResult, WorkItem
from shared.engine.grammar import Grammars, Walk
from shared.errors import BadGrammar
from shared.kv.layout import KvLayout


class ConstrainedRunner:
    """`Runner` around another one."""

    def __init__(self, inner: Runner, grammars: Grammars) -> None:
        self._inner = inner
        self._grammars = grammars
        self._walks: dict[int, Walk] = {}
        self._masks = 0
        self._microseconds = 0.0

    @property
    def layout(self) -> KvLayout:
        return self._inner.layout

    def warm_up(self) -> None:
        self._inner.warm_up()

    def view(self, block: int) -> memoryview:
        return self._inner.view(block)

    def landed(self, block: int) -> None:
        self._inner.landed(block)

    @property
    def counters(self) -> Mapping[str, int]:
        """The inner runner's, and how many masks were made in how many microseconds."""
        mine = {"grammar_masks": self._masks, "grammar_mask_us": int(self._microseconds)}
        return {**self._inner.counters, **mine}

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; where an id's grammar cannot be followed, its item has BadGrammar for a result."""
        for seq in plan.ended:
            self._walks.pop(seq, None)
        if not any(item.draw is not None and item.draw.params.grammar for item in plan.items):
            return self._inner.execute(plan)
        faults: dict[int, BadGrammar] = {}
        items = [self._constrained(at, item, faults) for at, item in enumerate(plan.items)]
        result = self._inner.execute(StepPlan(tuple(items), plan.ended))
        if not faults:
            return result
        drawn = [faults.get(at, outcome) for at, outcome in enumerate(result.drawn)]
        return dataclasses.replace(result, drawn=tuple(drawn))

    def close(self) -> None:
        self._walks.clear()
        self._inner.close()

    def _constrained(self, at: int, item: WorkItem, faults: dict[int, BadGrammar]) -> WorkItem:
        draw = item.draw
        if draw is None or not draw.params.grammar:
            return item
        try:
            return dataclasses.replace(item, draw=self._masked(item.seq, draw))
        except BadGrammar as error:
            faults[at] = error
            return dataclasses.replace(item, draw=None)

    def _masked(self, seq: int, draw: Draw) -> Draw:
        began = time.perf_counter()
        walk = self._walks.get(seq)
        if walk is None:
            walk = self._walks[seq] = Walk(self._grammars, draw.params.grammar)
        mask = walk.allowed(draw.written, draw.params.stop_ids)
        self._masks += 1
        self._microseconds += (time.perf_counter() - began) * 1e6
        return dataclasses.replace(draw, allowed=mask)
