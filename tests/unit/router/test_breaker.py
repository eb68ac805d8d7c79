"""A worker that fails gets no work for a while, then one probe."""

from services.router.breaker import Breaker, BreakerState


def breaker() -> Breaker:
    return Breaker(failures=3, first=1.0, most=4.0)


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    made = breaker()
    made.failed(0.0)
    made.failed(0.0)
    made.succeeded()
    made.failed(0.0)
    made.failed(0.0)
    assert made.allows(0.0)
    made.failed(0.0)
    assert not made.allows(0.9)
    assert made.until == 1.0


def test_one_request_probes_and_others_wait_for_its_result() -> None:
    made = breaker()
    for _ in range(3):
        made.failed(0.0)
    assert made.allows(1.0)
    made.placed(1.0)
    assert made.state is BreakerState.HALF_OPEN
    assert not made.allows(1.5)


def test_a_good_probe_closes_it() -> None:
    made = breaker()
    for _ in range(3):
        made.failed(0.0)
    made.placed(1.0)
    made.succeeded()
    assert made.allows(1.0)
    assert made.until is None


def test_a_bad_probe_doubles_the_wait_up_to_a_bound() -> None:
    made = breaker()
    for _ in range(3):
        made.failed(0.0)
    now = 0.0
    for wait in (2.0, 4.0, 4.0):
        now = made.until or 0.0
        made.placed(now)
        made.failed(now)
        assert made.until == now + wait


def test_a_probe_without_a_result_makes_room_for_another() -> None:
    made = breaker()
    for _ in range(3):
        made.failed(0.0)
    made.placed(1.0)
    assert made.allows(2.0)


def test_failures_while_it_is_open_do_not_extend_it() -> None:
    made = breaker()
    for at in range(6):
        made.failed(at / 10)
    assert made.until == 1.2
