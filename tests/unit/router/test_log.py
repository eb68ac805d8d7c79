"""The log's rules one by one (I1)."""

import pytest

from services.router.log import End, Log, Run
from shared.errors import Divergence, InvariantBroken
from shared.wire.messages import FinishReason, TokenLogprob


def log(prompt: int = 3, max_pos: int = 100, stops: tuple[int, ...] = (), ahead: int = 10) -> Log:
    made = Log(list(range(prompt)), max_pos, stops, ahead)
    made.own(1)
    return made


def gap(made: Log) -> float | None:
    return made.gap_since


def end(made: Log) -> End | None:
    return made.end


def runs(outcome: object) -> list[tuple[int, tuple[int, ...]]]:
    return [(run.start, run.ids) for _, run in outcome.runs]  # type: ignore[attr-defined]


def test_a_run_at_the_end_is_appended() -> None:
    made = log()
    assert runs(made.append(0.0, 1, Run(3, (7, 8)))) == [(3, (7, 8))]
    assert made.ids == [0, 1, 2, 7, 8]


def test_an_equal_overlap_is_dropped_and_the_rest_appended() -> None:
    made = log()
    made.append(0.0, 1, Run(3, (7, 8)))
    assert runs(made.append(0.0, 1, Run(3, (7, 8, 9)))) == [(5, (9,))]
    assert runs(made.append(0.0, 1, Run(4, (8,)))) == []


def test_an_overlap_that_differs_is_a_divergence_and_changes_nothing() -> None:
    made = log()
    made.append(0.0, 1, Run(3, (7, 8)))
    outcome = made.append(0.0, 1, Run(4, (5, 9)))
    assert isinstance(outcome.fault, Divergence)
    assert made.ids == [0, 1, 2, 7, 8]


def test_a_run_inside_the_prompt_is_a_divergence() -> None:
    assert log().append(0.0, 1, Run(2, (2, 7))).fault is not None


def test_older_and_unknown_terms_are_dropped() -> None:
    made = log()
    made.own(5)
    assert made.append(0.0, 1, Run(3, (7,))).stale
    assert made.append(0.0, 6, Run(3, (7,))).stale
    assert len(made) == 3


def test_the_following_term_takes_over_by_its_first_run_even_where_that_only_repeats() -> None:
    made = log()
    made.follow(2)
    made.append(0.0, 1, Run(3, (7,)))
    outcome = made.append(0.0, 2, Run(3, (7,)))
    assert outcome.took_over
    assert not outcome.runs
    assert made.current == 2
    assert made.append(0.0, 1, Run(4, (9,))).stale


def test_the_following_run_may_come_before_the_first_id() -> None:
    made = log()
    made.follow(2)
    assert runs(made.append(0.0, 2, Run(3, (7, 8)))) == [(3, (7, 8))]
    assert made.append(0.0, 1, Run(3, (7,))).stale


def test_a_following_run_that_differs_does_not_take_over() -> None:
    made = log()
    made.follow(2)
    made.append(0.0, 1, Run(3, (7,)))
    outcome = made.append(0.0, 2, Run(3, (6, 8)))
    assert outcome.fault is not None
    assert made.current == 1


def test_runs_ahead_are_held_until_the_gap_closes() -> None:
    made = log()
    assert not made.append(1.0, 1, Run(5, (9,))).runs
    assert gap(made) == 1.0
    assert not made.append(2.0, 1, Run(6, (10,))).runs
    assert gap(made) == 1.0
    assert runs(made.append(3.0, 1, Run(3, (7, 8)))) == [(3, (7, 8)), (5, (9,)), (6, (10,))]
    assert gap(made) is None
    assert made.held == 0


def test_a_gap_that_moves_counts_anew() -> None:
    made = log()
    made.append(1.0, 1, Run(6, (9,)))
    made.append(2.0, 1, Run(3, (7,)))
    assert gap(made) == 2.0
    made.asked_again(3.0)
    assert gap(made) == 3.0


def test_held_ids_are_bounded_and_what_found_no_room_is_still_a_gap() -> None:
    made = log(ahead=2)
    made.append(1.0, 1, Run(5, (1, 2)))
    made.append(1.0, 1, Run(7, (3, 4)))
    assert made.held == 2
    assert made.overflowed == 2
    made.append(2.0, 1, Run(3, (8, 9)))
    assert len(made) == 7
    assert gap(made) is not None


def test_a_held_run_that_differs_is_found_when_the_gap_closes() -> None:
    made = log()
    made.append(1.0, 1, Run(4, (5, 9)))
    outcome = made.append(2.0, 1, Run(3, (7, 8)))
    assert runs(outcome) == [(3, (7, 8))]
    assert outcome.fault is not None


def test_held_runs_of_older_terms_are_forgotten() -> None:
    made = log()
    made.append(1.0, 1, Run(5, (9,)))
    made.own(2)
    assert made.held == 0
    assert gap(made) is None


def test_terms_only_grow() -> None:
    made = log()
    with pytest.raises(InvariantBroken):
        made.own(1)
    with pytest.raises(InvariantBroken):
        made.follow(1)


@pytest.mark.parametrize(
    ("stops", "max_pos", "length", "reason"),
    [((8,), 100, 5, FinishReason.STOP), ((), 6, 6, FinishReason.LENGTH), ((8,), 5, 5, FinishReason.STOP)],
)
def test_the_end_is_found_by_the_log(
    stops: tuple[int, ...], max_pos: int, length: int, reason: FinishReason
) -> None:
    made = log(max_pos=max_pos, stops=stops)
    outcome = made.append(0.0, 1, Run(3, (7, 8, 9, 10, 11)))
    assert made.end is not None
    assert (made.end.at, made.end.reason) == (length, reason)
    assert len(made) == length
    assert sum(len(ids) for _, ids in runs(outcome)) == length - 3
    assert made.append(0.0, 1, Run(length, (1,))).stale


def test_finished_counts_once_the_log_is_as_long() -> None:
    made = log()
    assert made.finish(1.0, 1, 5, FinishReason.STOP)
    assert end(made) is None
    assert gap(made) == 1.0
    made.append(2.0, 1, Run(3, (7, 8)))
    assert made.end is not None
    assert made.end.at == 5


def test_finished_of_an_older_term_is_dropped() -> None:
    made = log()
    made.own(2)
    assert not made.finish(0.0, 1, 3, FinishReason.STOP)
    assert end(made) is None


def test_finished_is_forgotten_with_its_term() -> None:
    made = log()
    made.finish(0.0, 1, 5, FinishReason.STOP)
    made.own(2)
    made.append(0.0, 2, Run(3, (7, 8)))
    assert end(made) is None


def test_a_stop_string_may_lie_before_ids_that_were_accepted() -> None:
    made = log()
    made.append(0.0, 1, Run(3, (7, 8, 9)))
    made.cut_short(4)
    assert made.end is not None
    assert made.end.at == 4
    with pytest.raises(InvariantBroken):
        log().cut_short(2)


def test_logprobs_are_cut_with_their_ids() -> None:
    made = log(stops=(9,))
    probs = tuple(TokenLogprob(-float(at)) for at in range(4))
    made.append(0.0, 1, Run(3, (7,), probs[:1]))
    outcome = made.append(0.0, 1, Run(3, (7, 8, 9, 10), probs))
    run = outcome.runs[0][1]
    assert run.ids == (8, 9)
    assert run.logprobs == probs[1:3]
