"""Who waits, in which order, and who is sent away with which Retry-After."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.admission import DRAIN_SAMPLES, QUANTUM, Admission, DrainRate, WaitingRoom
from shared.errors import Overloaded
from shared.policy.config import RouterPolicy
from shared.wire.messages import Rid


def rid(counter: int) -> Rid:
    return Rid(1, counter)


def serve(room: WaitingRoom, count: int) -> list[int]:
    served = []
    for _ in range(count):
        head = room.peek()
        assert head is not None
        served.append(head.counter)
        room.remove(head, served=True)
    return served


def test_one_tenant_is_served_in_order() -> None:
    room = WaitingRoom()
    for at in range(5):
        room.add(rid(at), "a", 0, 1000 * (5 - at))
    assert serve(room, 5) == [0, 1, 2, 3, 4]
    assert room.peek() is None


def test_lower_priority_numbers_go_first() -> None:
    room = WaitingRoom()
    room.add(rid(1), "a", 1, 10)
    room.add(rid(2), "b", 0, 10)
    room.add(rid(3), "a", 0, 10)
    assert set(serve(room, 2)) == {2, 3}
    assert serve(room, 1) == [1]


def test_tenants_share_by_what_they_keep_busy_not_by_requests() -> None:
    room = WaitingRoom()
    for at in range(100):
        room.add(rid(at), "large", 0, 80_000)
    for at in range(100, 500):
        room.add(rid(at), "small", 0, 10_000)
    cost: Counter[str] = Counter()
    for counter in serve(room, 180):
        cost["large" if counter < 100 else "small"] += 80_000 if counter < 100 else 10_000
    assert 0.8 < cost["large"] / cost["small"] < 1.25


class _Rounds(WaitingRoom):
    """Turn by turn, as deficit round robin is written down."""

    def peek(self) -> Rid | None:
        if not self._levels:
            return None
        level = self._levels[min(self._levels)]
        while True:
            tenant = next(iter(level.values()))
            rid, cost = tenant.head
            if len(level) == 1:
                tenant.credit = max(tenant.credit, cost)
            if tenant.credit >= cost:
                return rid
            tenant.credit += QUANTUM
            level.move_to_end(next(iter(level)))


@given(costs=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 900_000)), max_size=30))
def test_turns_are_those_of_deficit_round_robin(costs: list[tuple[str, int]]) -> None:
    room, plain = WaitingRoom(), _Rounds()
    for at, (tenant, cost) in enumerate(costs):
        room.add(rid(at), tenant, 0, cost)
        plain.add(rid(at), tenant, 0, cost)
    assert serve(room, len(costs)) == serve(plain, len(costs))


def test_turns_of_huge_requests_are_found_at_once() -> None:
    """What a line that has nearly failed would take for a long prompt."""
    room = WaitingRoom()
    room.add(rid(1), "a", 0, 10**15)
    room.add(rid(2), "b", 0, 10**14)
    assert serve(room, 2) == [2, 1]


def test_a_tenant_that_was_alone_owes_nothing_when_another_comes() -> None:
    room = WaitingRoom()
    for at in range(50):
        room.add(rid(at), "first", 0, 20_000)
    serve(room, 40)
    for at in range(100, 120):
        room.add(rid(at), "second", 0, 20_000)
    served = serve(room, 10)
    assert 4 <= sum(counter < 100 for counter in served) <= 6


def test_a_request_that_was_placed_in_vain_has_its_old_place_again() -> None:
    room = WaitingRoom()
    room.add(rid(1), "a", 0, 10)
    room.add(rid(2), "a", 0, 10)
    room.remove(rid(1))
    room.remove(rid(1))
    assert len(room) == 1
    assert room.peek() == rid(2)
    room.add(rid(1), "a", 0, 10)
    assert serve(room, 2) == [1, 2]


def test_after_skips_what_was_tried() -> None:
    room = WaitingRoom()
    for at in range(3):
        room.add(rid(at), "a", 0, 10)
    assert room.after({rid(0)}) == rid(1)
    assert room.after({rid(0), rid(1), rid(2)}) is None


def test_more_live_requests_than_allowed_are_refused_with_retry_after() -> None:
    admission = Admission(RouterPolicy(max_requests=2))
    admission.check(0.0, 1)
    with pytest.raises(Overloaded, match="2 requests") as refused:
        admission.check(0.0, 2)
    assert refused.value.retry_after >= 1.0
    assert refused.value.status == 429


def test_a_burst_may_wait_while_nothing_is_known_of_the_drain() -> None:
    admission = Admission(RouterPolicy())
    for at in range(32):
        admission.enter(0.1, rid(at), "a", 0, 10)
    assert len(admission.room) == 32


def test_what_would_wait_too_long_is_refused_at_once() -> None:
    admission = Admission(RouterPolicy(queue_wait=10.0))
    for at in range(20):
        admission.enter(0.0, rid(at), "a", 0, 10)
    admission.drain.ended(1.0)
    admission.drain.ended(2.0)
    with pytest.raises(Overloaded, match="20 requests wait") as refused:
        admission.enter(2.0, rid(99), "a", 0, 10)
    assert refused.value.retry_after == pytest.approx(21.0)  # its own turn too


def test_the_waiting_room_is_bounded() -> None:
    admission = Admission(RouterPolicy(max_waiting=2))
    for at in range(2):
        admission.enter(0.0, rid(at), "a", 0, 10)
    with pytest.raises(Overloaded):
        admission.enter(0.0, rid(9), "a", 0, 10)


def test_the_drain_is_measured_only_while_some_wait() -> None:
    admission = Admission(RouterPolicy(queue_wait=5.0))
    admission.drain.ended(0.0)
    admission.enter(100.0, rid(1), "a", 0, 10)
    admission.leave(101.0, rid(1), served=True)
    admission.enter(200.0, rid(2), "a", 0, 10)
    for at in range(10, 40):
        admission.enter(200.5, rid(at), "a", 0, 10)
    assert len(admission.room) == 31


def test_the_drain_is_that_of_the_last_ends() -> None:
    """A queue that has stood for long drains as it does now, not as it did on the average."""
    drain = DrainRate()
    drain.waiting(0.0, some=True)
    for at in range(100):
        drain.ended(float(at))
    assert drain.seconds_for(100.0, 10) == pytest.approx(10.0, rel=0.05)
    for at in range(DRAIN_SAMPLES):
        drain.ended(100.0 + 0.1 * at)
    assert drain.seconds_for(100.0 + 0.1 * DRAIN_SAMPLES, 10) == pytest.approx(1.0, rel=0.05)


def test_a_burst_of_ends_at_the_start_says_nothing_of_the_drain() -> None:
    drain = DrainRate()
    drain.waiting(0.0, some=True)
    for _ in range(20):
        drain.ended(0.01)
    assert drain.seconds_for(0.5, 100) == 0.0
    assert drain.seconds_for(10.0, 100) == pytest.approx(50.0)  # 20 ends in 10 s
    drain.waiting(10.0, some=False)
    assert drain.seconds_for(11.0, 100) == 0.0


def test_what_workers_have_queued_counts_before_any_request_has_ended() -> None:
    admission = Admission(RouterPolicy(queue_wait=10.0))
    admission.enter(0.0, rid(1), "a", 0, 1_000_000, backlog=3.5)
    with pytest.raises(Overloaded, match="about 6 s") as refused:
        admission.enter(0.0, rid(2), "a", 0, 1_000_000, backlog=4.6)
    assert refused.value.retry_after == pytest.approx(5.6)


def test_a_queue_that_stands_is_kept_shorter_than_a_burst() -> None:
    admission = Admission(RouterPolicy(queue_wait=10.0))
    admission.enter(0.0, rid(1), "a", 0, 10, backlog=4.0)
    for at in range(1, 11):
        admission.drain.ended(float(at))
    with pytest.raises(Overloaded):
        admission.enter(11.0, rid(2), "a", 0, 10, backlog=4.0)
    admission.leave(11.0, rid(1))
    admission.enter(11.0, rid(3), "a", 0, 10, backlog=4.0)


def test_a_tenant_that_fills_the_room_keeps_no_other_out() -> None:
    admission = Admission(RouterPolicy(queue_wait=10.0))
    for at in range(51):
        admission.enter(0.0, rid(at), "many", 0, 100_000)
    with pytest.raises(Overloaded):
        admission.enter(0.0, rid(98), "many", 0, 100_000)
    admission.enter(0.0, rid(99), "few", 0, 100_000)


def test_only_what_is_served_before_it_keeps_a_request_out() -> None:
    admission = Admission(RouterPolicy(queue_wait=10.0))
    for at in range(51):
        admission.enter(0.0, rid(at), "a", 5, 100_000)
    with pytest.raises(Overloaded):
        admission.enter(0.0, rid(98), "a", 5, 100_000)
    admission.enter(0.0, rid(99), "a", 0, 100_000)


def test_the_oldest_is_the_one_that_came_first_whatever_its_turn() -> None:
    room = WaitingRoom()
    room.add(rid(3), "a", 0, 10)
    room.add(rid(1), "b", 5, 10)
    room.add(rid(2), "a", 0, 10)
    assert room.peek() == rid(2)
    assert room.oldest() == rid(1)
    room.remove(rid(1))
    assert room.oldest() == rid(2)
    assert WaitingRoom().oldest() is None
