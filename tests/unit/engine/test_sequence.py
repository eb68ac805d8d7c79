from __future__ import annotations

import itertools

import pytest

from shared.engine.sequence import _TABLE, Goal, Phase, Sequence, Turn
from shared.errors import InvariantBroken
from tests.support.engine_bench import BLOCK, Bench, prompt


def sequence(length: int, goal: Goal, held: int = 0) -> Sequence:
    spec = Bench().spec(prompt(length), goal)
    spec.blocks = list(range(held))
    return Sequence(1, spec, BLOCK, 0.0)


@pytest.mark.parametrize(("phase", "turn"), list(itertools.product(Phase, Turn)))
def test_phases(phase: Phase, turn: Turn) -> None:
    made = sequence(5, Goal.OWN)
    made.phase = phase
    after = _TABLE.get((phase, turn))
    if after is None:
        with pytest.raises(InvariantBroken, match=f"is {phase.value} and cannot {turn.value}"):
            made.turn(turn)
    else:
        made.turn(turn)
        assert made.phase is after


def test_nothing_follows_gone() -> None:
    assert not [turn for phase, turn in _TABLE if phase is Phase.GONE]
    assert [turn for phase, turn in _TABLE if phase is Phase.DONE] == [Turn.END]


@pytest.mark.parametrize(
    ("goal", "held", "remaining", "wants", "decodes"),
    [
        (Goal.OWN, 0, 9, True, False),
        (Goal.OWN, 2, 1, True, True),
        (Goal.PREFILL, 0, 9, True, False),
        (Goal.PREFILL, 2, 1, True, False),
        (Goal.EXTEND, 0, 8, True, False),
        (Goal.EXTEND, 2, 0, False, False),
    ],
)
def test_what_a_goal_wants(goal: Goal, held: int, remaining: int, wants: bool, decodes: bool) -> None:
    made = sequence(9, goal, held)
    assert (made.remaining, made.wants, made.decodes) == (remaining, wants, decodes)


def test_a_fully_cached_standby_wants_nothing_and_an_owner_its_draw() -> None:
    assert (sequence(8, Goal.EXTEND, 2).remaining, sequence(8, Goal.EXTEND, 2).wants) == (0, False)
    assert (sequence(8, Goal.OWN, 2).remaining, sequence(8, Goal.OWN, 2).wants) == (0, True)


def test_paused_ending_and_done_want_nothing() -> None:
    for change in ("paused", "ending"):
        made = sequence(9, Goal.OWN)
        setattr(made, change, True)
        assert not made.wants
    made = sequence(9, Goal.OWN)
    made.turn(Turn.FINISH)
    assert not made.wants


def test_a_prefill_wants_one_draw() -> None:
    made = sequence(9, Goal.PREFILL)
    made.computed, made.drawn = 9, True
    made.ids.append(3)
    assert (made.draws, made.remaining, made.wants) == (False, 0, False)


def test_the_table_follows_the_blocks() -> None:
    made = sequence(9, Goal.OWN, 2)
    assert list(made.table) == [0, 1]
    made.grow([7])
    assert list(made.table) == [0, 1, 7]
    assert made.table is made.table
    assert made.cut_block() == 7
    assert (list(made.table), made.size, made.block(1)) == ([0, 1], 2, 1)
    assert made.clear() == [0, 1]
    assert made.size == len(made.table) == 0
