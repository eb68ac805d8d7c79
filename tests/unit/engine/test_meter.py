from __future__ import annotations

import pytest

from shared.engine.api import StepPlan, StepResult, WorkItem
from shared.engine.meter import RECENT_STEPS, Meter
from tests.support.engine_bench import BLOCK


def step(meter: Meter, seconds: float, *sizes: int, now: float = 1.0) -> None:
    items = tuple(WorkItem(n, 0, tuple(range(size)), (0,)) for n, size in enumerate(sizes))
    meter.applied(now, StepPlan(items), StepResult((None,) * len(items), seconds))


def test_extends_and_decodes_are_told_apart() -> None:
    meter = Meter(BLOCK)
    step(meter, 2.0, 8, 12)
    step(meter, 0.5, 1, 1, 1)
    step(meter, 1.0, 10, 1, now=7.0)
    stats = meter.stats(())
    assert stats.prefill_rate == pytest.approx(30 / 3.0)
    assert stats.decode_step_ms == pytest.approx(750)
    assert (stats.steps, stats.computed_tokens, stats.last_step) == (3, 34, 7.0)


def test_a_step_without_items_is_none() -> None:
    meter = Meter(BLOCK)
    step(meter, 5.0)
    assert meter.stats(()) == Meter(BLOCK).stats(())


@pytest.mark.parametrize(("size", "counts"), [(BLOCK - 1, False), (BLOCK, True)])
def test_short_extends_say_nothing_of_the_prefill_rate(size: int, counts: bool) -> None:
    meter = Meter(BLOCK)
    step(meter, 1.0, size)
    assert bool(meter.stats(()).prefill_rate) == counts


def test_only_recent_steps_count() -> None:
    meter = Meter(BLOCK)
    step(meter, 100.0, 1)
    for _ in range(RECENT_STEPS):
        step(meter, 0.01, 1)
    assert meter.stats(()).decode_step_ms == pytest.approx(10)


def test_waiting_times_are_averaged() -> None:
    meter = Meter(BLOCK)
    meter.started(1.0)
    meter.started(2.0)
    assert meter.stats(()).queue_wait == pytest.approx(1.5)
