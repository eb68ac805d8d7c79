"""A step's items computed together; where that raises, each by itself, so that only the guilty one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.engine.api import Drawn, StepPlan, WorkItem
from shared.engine.refusal import Bounds, refusal
from shared.errors import MeshError

Outcome = Drawn | None | Exception
Compute = Callable[[Sequence[WorkItem]], list[Outcome]]
_FAULTS = (RuntimeError, MemoryError, OSError, ValueError, IndexError, TypeError, MeshError)


def outcomes(
    plan: StepPlan, bounds: Bounds, compute: Compute, settle: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """In the order of the plan's items. `settle` runs after a failed attempt; what it raises is for all."""
    found: list[Outcome] = [refusal(item, bounds) for item in plan.items]
    sound = [at for at, outcome in enumerate(found) if outcome is None]
    for at, outcome in zip(sound, _attempt([plan.items[at] for at in sound], compute, settle), strict=True):
        found[at] = outcome
    return found


def _attempt(items: Sequence[WorkItem], compute: Compute, settle: Callable[[], None]) -> list[Outcome]:
    if not items:
        return []
    try:
        return compute(items)
    except _FAULTS as error:
        settle()
        if len(items) == 1:
            return [error]
    return [outcome for item in items for outcome in _attempt([item], compute, settle)]
