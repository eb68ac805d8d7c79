"""The room that a step has beside decodes, learnt from steps."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st
import pytest

from shared.engine.api import StepPlan, StepResult, WorkItem
from shared.engine.pace import FIRST, LEAST, PROBE, Pace

MOST = 500
WAYS: dict[str, Callable[[int], int]] = {
    "steady": lambda n: 8,
    "growing": lambda n: 1 + n // 3,
    "shrinking": lambda n: 60 - n // 3,
    "up and down": lambda n: 1 + n * 7 % 40,
}
"""Decodes of the n-th step."""


def step(pace: Pace, decodes: int, extended: int, seconds: float) -> None:
    items = [WorkItem(seq, 40, (1,), (0, 1)) for seq in range(decodes)]
    if extended:
        items.append(WorkItem(99, 0, (1,) * extended, (2, 3)))
    pace.applied(StepPlan(tuple(items)), StepResult((None,) * len(items), seconds))


class Machine:
    """Steps take `base`, so much for each decode and so much for each token of an extend."""

    def __init__(self, base: float, decode: float, token: float, stretch: float = 2.0) -> None:
        self.base, self.decode, self.token, self.stretch = base, decode, token, stretch
        self.pace = Pace(stretch)

    def seconds(self, decodes: int, extended: int) -> float:
        return self.base + self.decode * decodes + self.token * extended

    def right(self, decodes: int) -> int:
        spare = (self.stretch - 1) * self.seconds(decodes, 0)
        return max(LEAST, min(MOST, int(spare / self.token)))

    def run(self, decodes: int, noise: float = 1.0) -> int:
        """A step with as many new tokens as there is room for; returns these."""
        extended = self.pace.room(decodes, MOST)
        step(self.pace, decodes, extended, self.seconds(decodes, extended) * noise)
        return extended


def drawn(draw: random.Random) -> Machine:
    """Any machine within reason."""
    base = 10 ** draw.uniform(-3, -1)
    decode, token = (base * 10 ** draw.uniform(-3, -0.5) for _ in range(2))
    return Machine(base, decode, token, draw.uniform(1.3, 3.0))


def test_nothing_is_cut_before_something_is_known() -> None:
    pace = Pace(2.0)
    assert pace.room(4, MOST) == MOST
    step(pace, 4, 0, 0.02)
    assert pace.room(4, MOST) == MOST


def test_a_prefill_alone_teaches_until_a_mixed_step_has() -> None:
    machine = Machine(0.02, 0.0, 0.001)
    step(machine.pace, 0, 100, machine.seconds(0, 100))
    step(machine.pace, 4, 0, machine.seconds(4, 0))
    assert LEAST <= machine.pace.room(4, MOST) <= 2 * machine.right(4)
    for _ in range(40):
        machine.run(4)
    assert machine.pace.room(4, MOST) == pytest.approx(machine.right(4), rel=0.1)


def test_room_for_all_where_tokens_cost_nothing() -> None:
    pace = Pace(2.0)
    for _ in range(8):
        step(pace, 4, 0, 0.02)
        step(pace, 4, pace.room(4, MOST), 0.0199)
    assert pace.room(4, MOST) == MOST


def test_decodes_that_have_become_more_are_not_taken_for_dearer_tokens() -> None:
    """Fifty requests are cut to a decoder: its decodes grow with every extend that has ended."""
    machine = Machine(0.02, 0.0002, 0.0001)
    for _ in range(5):
        step(machine.pace, 1, 0, machine.seconds(1, 0))
    rooms = [(machine.run(1 + n), machine.right(1 + n)) for n in range(50)]
    assert statistics.median(room / right for room, right in rooms[10:]) > 0.8


@pytest.mark.parametrize("way", WAYS)
def test_the_room_is_right_soon_and_stays_so(way: str) -> None:
    """On nearly all machines nearly exactly, on none far off, with noise too."""
    draw = random.Random(1)
    found = []
    for at in range(8):
        machine, noise = drawn(draw), (0.0, 0.05)[at % 2]
        parts = []
        for n in range(120):
            decodes = WAYS[way](n)
            extended = machine.run(decodes, max(0.5, draw.gauss(1.0, noise)))
            assert LEAST <= extended <= MOST
            if n >= 60:
                parts.append(extended / machine.right(decodes))
        found.append(statistics.median(parts))
    assert 0.8 < statistics.median(found) < 1.25
    assert min(found) > 0.4
    assert max(found) < 2.5


def test_one_step_that_was_held_up_changes_little() -> None:
    draw = random.Random(2)
    for times in (5.0, 20.0, 100.0, 1000.0):
        machine = drawn(draw)
        for _ in range(40 + draw.randrange(PROBE)):
            machine.run(8)
        machine.run(8, times)
        rooms = [machine.run(8) for _ in range(PROBE)]
        assert statistics.median(rooms) >= 0.7 * machine.right(8)


def test_no_wrong_estimate_lasts() -> None:
    """A machine that has become another one, much faster or slower."""
    draw = random.Random(3)
    for _ in range(24):
        before, after = drawn(draw), drawn(draw)
        after.pace, after.stretch = before.pace, before.stretch
        decodes = draw.randint(1, 64)
        for _ in range(draw.randint(1, 40)):
            before.run(decodes)
        for _ in range(200):
            after.run(decodes)
        rooms = [after.run(decodes) for _ in range(PROBE)]
        right = after.right(decodes)
        assert 0.6 * right <= statistics.median(rooms) <= 2 * right


def test_decodes_are_seen_almost_alone_though_extends_never_cease() -> None:
    machine = Machine(0.02, 0.0002, 0.0001)
    rooms = [machine.run(8) for _ in range(10 * PROBE)]
    assert LEAST in rooms[-2 * PROBE :]
    assert rooms.count(LEAST) < len(rooms) / 8


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 600), st.floats(0, 10)), max_size=30))
def test_an_extend_always_goes_on(steps: list[tuple[int, int, float]]) -> None:
    """Whatever steps have taken."""
    pace = Pace(1.75)
    for decodes, extended, seconds in steps:
        if decodes or extended:
            step(pace, decodes, extended, seconds)
        assert LEAST <= pace.room(max(decodes, 1), MOST) <= MOST
        assert pace.room(max(decodes, 1), 3) == 3


def test_steps_that_take_no_time_teach_nothing() -> None:
    pace = Pace(1.75)
    for seconds in (0.0, 5e-324, 1e-200):
        step(pace, 4, 0, seconds)
        step(pace, 4, 50, seconds)
        assert pace.room(4, MOST) == MOST


@pytest.mark.parametrize("rate", [1e1, 1e2, 1e3, 1e5, 1e7])
def test_a_step_alone_takes_no_longer_than_it_may_however_slow_the_machine(rate: float) -> None:
    """From the second step on; and one that is fast enough gets the whole chunk."""
    machine = Machine(0.02, 0.0, 1 / rate)
    tokens = machine.pace.alone(2.0, 2048)
    assert tokens == FIRST
    for _ in range(4):
        step(machine.pace, 0, tokens, machine.seconds(0, tokens))
        tokens = machine.pace.alone(2.0, 2048)
        assert machine.seconds(0, tokens) <= 2.0
    assert tokens == 2048 or machine.seconds(0, tokens) > 1.5


def test_what_is_seen_beside_decodes_bounds_a_step_alone() -> None:
    machine = Machine(0.02, 0.001, 0.01)
    step(machine.pace, 4, 50, machine.seconds(4, 50))
    assert LEAST < machine.pace.alone(2.0, 2048) <= 200


def test_a_step_alone_has_a_few_tokens_at_least() -> None:
    machine = Machine(1.0, 0.0, 5.0)
    step(machine.pace, 0, 8, machine.seconds(0, 8))
    assert machine.pace.alone(2.0, 2048) == LEAST
    assert machine.pace.alone(2.0, 4) == 4
