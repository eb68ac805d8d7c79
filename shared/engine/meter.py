"""What the engine measures of its own steps, for load reports and routing."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from shared.engine.api import StepPlan, StepResult
from shared.engine.sequence import Phase, Sequence

RECENT_STEPS = 32


@dataclass(frozen=True, slots=True)
class EngineStats:
    running: int
    """Sequences that take part in steps."""
    queued: int
    """Sequences with work that wait for a place."""
    queued_tokens: int
    """Known tokens still to be computed, of both."""
    prefill_rate: float
    """New tokens/s of recent steps that extend; 0: no sample yet."""
    decode_step_ms: float
    """Median milliseconds of recent steps that decode; 0: no sample yet."""
    queue_wait: float = 0.0
    """Mean seconds that the sequences started last had waited; 0: no sample yet."""
    steps: int = 0
    """Steps with work since the start."""
    last_step: float = 0.0
    """When the last step with work was applied, in the caller's seconds; 0: none yet."""
    computed_tokens: int = 0
    """New tokens computed since the start."""


class Meter:
    """Counts and recent speeds."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._extends: deque[tuple[int, float]] = deque(maxlen=RECENT_STEPS)
        self._decodes: deque[float] = deque(maxlen=RECENT_STEPS)
        self._waits: deque[float] = deque(maxlen=RECENT_STEPS)
        self._steps = 0
        self._last_step = 0.0
        self._tokens = 0

    def started(self, waited: float) -> None:
        """A sequence got a place after so many seconds."""
        self._waits.append(waited)

    def applied(self, now: float, plan: StepPlan, result: StepResult) -> None:
        """A step is over."""
        if not plan.items:
            return
        extended = sum(len(item.ids) for item in plan.items if len(item.ids) > 1)
        decoded = sum(len(item.ids) == 1 for item in plan.items)
        self._steps += 1
        self._last_step = now
        self._tokens += extended + decoded
        if extended >= self._block_tokens:
            self._extends.append((extended, result.seconds))
        if decoded:
            self._decodes.append(result.seconds)

    def stats(self, sequences: Iterable[Sequence]) -> EngineStats:
        running = queued = tokens = 0
        for sequence in sequences:
            if sequence.phase is Phase.RUNNING:
                running += 1
            elif sequence.phase is Phase.WAITING:
                queued += 1
            else:
                continue
            tokens += sequence.remaining
        seconds = sum(spent for _, spent in self._extends)
        return EngineStats(
            running=running,
            queued=queued,
            queued_tokens=tokens,
            prefill_rate=sum(n for n, _ in self._extends) / seconds if seconds > 0 else 0.0,
            decode_step_ms=1e3 * statistics.median(self._decodes) if self._decodes else 0.0,
            queue_wait=statistics.fmean(self._waits) if self._waits else 0.0,
            steps=self._steps,
            last_step=self._last_step,
            computed_tokens=self._tokens,
        )
