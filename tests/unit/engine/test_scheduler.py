from __future__ import annotations

import pytest

from shared.engine.pace import LEAST, Pace
from shared.engine.scheduler import FAIR_TURN, Scheduler
from shared.engine.sequence import Goal, Sequence
from shared.policy.config import WorkerPolicy
from tests.support.engine_bench import BLOCK, Bench, prompt

POLICY = WorkerPolicy(token_budget=16, max_chunk_tokens=40, max_running=4)


def made(number: int, remaining: int, goal: Goal = Goal.PREFILL, priority: int = 0) -> Sequence:
    length = remaining + (goal is Goal.EXTEND)
    spec = Bench().spec(prompt(length), goal, priority=priority)
    return Sequence(number, spec, BLOCK, 0.0)


def decoding(number: int) -> Sequence:
    return made(number, 1, Goal.OWN)


def fits(sequence: Sequence, room: int) -> int:
    return min(sequence.remaining, room)


def pick(*running: Sequence, scheduler: Scheduler | None = None) -> list[tuple[int, int]]:
    picked = (scheduler or Scheduler(POLICY, Pace(2.0))).pick(running, fits)
    return [(sequence.number, n) for sequence, n in picked]


def test_alone_a_prompt_runs_in_the_largest_chunk() -> None:
    assert pick(made(1, 100)) == [(1, 40)]


def test_tails_are_packed_with_other_work() -> None:
    assert pick(made(1, 30), made(2, 7), made(3, 9)) == [(1, 30), (2, 7), (3, 3)]


def test_decodes_go_first_and_set_the_budget() -> None:
    assert pick(made(1, 100), decoding(2), decoding(3)) == [(2, 1), (3, 1), (1, 14)]


def test_decodes_are_in_order_of_age() -> None:
    assert pick(decoding(9), decoding(2)) == [(2, 1), (9, 1)]


def test_extends_keep_a_few_tokens_however_many_decode() -> None:
    many = [decoding(number) for number in range(2, 32)]
    assert pick(made(1, 100), *many)[-1] == (1, LEAST)


def test_a_small_budget_is_kept() -> None:
    scheduler = Scheduler(WorkerPolicy(token_budget=2), Pace(2.0))
    assert pick(made(1, 100), decoding(2), scheduler=scheduler) == [(2, 1), (1, 2)]


def test_decodes_that_do_not_fit_leave_the_step_to_extends() -> None:
    def fit(sequence: Sequence, room: int) -> int:
        return 0 if sequence.decodes else min(sequence.remaining, room)

    picked = Scheduler(POLICY, Pace(2.0)).pick([made(1, 100), decoding(2)], fit)
    assert [(sequence.number, n) for sequence, n in picked] == [(1, 40)]


def test_what_does_not_fit_leaves_room_for_the_next() -> None:
    def fit(sequence: Sequence, room: int) -> int:
        return 0 if sequence.number == 1 else min(sequence.remaining, room)

    picked = Scheduler(POLICY, Pace(2.0)).pick([made(1, 100), made(2, 100)], fit)
    assert [(sequence.number, n) for sequence, n in picked] == [(2, 40)]


def test_urgent_ones_first_then_in_order_then_standbys() -> None:
    order = pick(
        made(1, 4, priority=1),
        made(2, 4, Goal.EXTEND),
        made(3, 4, Goal.OWN),
        made(4, 4),
        made(5, 4, priority=-1),
    )
    assert [number for number, _ in order] == [5, 3, 4, 2, 1]


def test_no_priority_waits_for_ever() -> None:
    scheduler = Scheduler(POLICY, Pace(2.0))
    running = [made(1, 500, priority=9), made(2, 500), made(3, 500)]
    served = [pick(*running, scheduler=scheduler)[0][0] for _ in range(2 * FAIR_TURN)]
    assert served.count(1) == 2
    assert served.count(2) == 2 * FAIR_TURN - 2


def test_no_priority_waits_for_ever_for_a_place() -> None:
    scheduler = Scheduler(POLICY, Pace(2.0))
    waiting = [made(1, 4, priority=9), *(made(number, 4) for number in range(2, 9))]
    started = [scheduler.starts(POLICY.max_running - 1, waiting[:1] + waiting[n:])[0] for n in range(1, 5)]
    assert [s.number for s in started] == [2, 3, 4, 1]


@pytest.mark.parametrize(("running", "started"), [(0, [5, 1, 2, 3]), (3, [5]), (4, []), (7, [])])
def test_places_go_to_the_most_urgent(running: int, started: list[int]) -> None:
    waiting = [made(1, 4), made(2, 4), made(3, 4), made(4, 4), made(5, 4, priority=-1)]
    assert [s.number for s in Scheduler(POLICY, Pace(2.0)).starts(running, waiting)] == started
