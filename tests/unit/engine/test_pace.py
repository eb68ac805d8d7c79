"""The room that a step has beside decodes, learnt from steps."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

from shared.engine.api import StepPlan, StepResult, WorkItem
from shared.engine.pace import LEAST, Pace

MOST = 500


def step(pace: Pace, decodes: int, extended: int, seconds: float) -> None:
    items = [WorkItem(seq, 40, (1,), (0, 1)) for seq in range(decodes)]
    if extended:
        items.append(WorkItem(99, 0, (1,) * extended, (2, 3)))
    pace.applied(StepPlan(tuple(items)), StepResult((None,) * len(items), seconds))


def test_nothing_is_cut_before_something_is_known() -> None:
    pace = Pace(2.0)
    assert pace.room(MOST) == MOST
    step(pace, 4, 0, 0.02)
    assert pace.room(MOST) == MOST


def test_a_prefill_alone_teaches_until_a_mixed_step_has() -> None:
    pace = Pace(2.0)
    step(pace, 0, 100, 0.1)
    step(pace, 4, 0, 0.02)
    assert pace.room(MOST) == 20
    step(pace, 4, 50, 0.07)
    assert pace.room(MOST) == 20
    for _ in range(8):
        step(pace, 4, 50, 0.12)
    assert pace.room(MOST) == 10


def test_room_for_all_where_tokens_cost_nothing() -> None:
    pace = Pace(2.0)
    step(pace, 4, 0, 0.02)
    step(pace, 4, 30, 0.019)
    assert pace.room(MOST) == MOST


@hypothesis.given(
    st.floats(1e-4, 1.0), st.floats(1e-7, 1e-2), st.floats(1.0, 4.0), st.integers(1, 64), st.integers(1, 2048)
)
def test_a_step_stays_within_the_stretch(
    base: float, token: float, stretch: float, decodes: int, most: int
) -> None:
    """On a machine whose steps are a constant and so much a token, whatever these are."""
    pace = Pace(stretch)
    for _ in range(5):
        step(pace, decodes, 0, base)
    for _ in range(20):
        room = pace.room(most)
        assert min(most, LEAST) <= room <= most
        step(pace, decodes, room, base + room * token)
    taken = base + pace.room(most) * token
    assert taken <= stretch * base * 1.001 or pace.room(most) <= LEAST
