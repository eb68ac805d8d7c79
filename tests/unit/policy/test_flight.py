"""Bytes that should have been acknowledged by now, and when they should have been."""

from __future__ import annotations

import math
import random

import pytest

from shared.policy.flight import Flight, Patience

RTT = 0.04
PATIENCE = 0.07


def made(rtt: float = RTT) -> Patience:
    patience = Patience()
    patience.sample(rtt, rtt, 0.0)
    return patience


def test_bytes_are_late_when_their_time_is_over_and_not_before() -> None:
    flight = Flight()
    flight.gave(10.0, 1000)
    flight.gave(10.05, 500)
    assert not flight.late(10.069, PATIENCE, 0)
    assert flight.late(10.071, PATIENCE, 0)
    assert flight.late(10.071, PATIENCE, 1499)
    assert not flight.late(10.071, PATIENCE, 1500)
    flight.seen(10.08, 500)
    assert not flight.late(10.08, PATIENCE, 0)
    assert flight.late(99.0, PATIENCE, 0)
    flight.seen(99.0, 0)
    assert not flight.late(99.0, PATIENCE, 0)


def test_late_bytes_hold_nothing_back_while_as_many_are_acknowledged_as_are_outstanding() -> None:
    """A queue on the line makes all bytes late that are in it; it is short enough when that much is left."""
    flight = Flight()
    flight.gave(10.0, 3000)
    flight.seen(10.08, 2000)
    assert flight.late(10.08, PATIENCE, 0)
    flight.seen(10.1, 1500)
    assert not flight.late(10.1, PATIENCE, 0)
    assert flight.late(10.2, PATIENCE, 0), "those were acknowledged long ago"


def test_late_is_what_lists_of_all_bytes_say() -> None:
    draw = random.Random(1)
    flight = Flight()
    given: list[tuple[float, int]] = []
    acks = [(0.0, 0)]
    now, seen = 0.0, {True: 0, False: 0}
    for _ in range(2000):
        now += draw.expovariate(100)
        size = draw.randrange(1, 9000)
        flight.gave(now, size)
        given.append((now, size))
        total = sum(one for _, one in given)
        acks.append((now, min(total, acks[-1][1] + int(draw.uniform(0, 2) * size))))
        flight.seen(now, total - acks[-1][1])
        then, acked = now - PATIENCE, acks[-1][1]
        due = sum(one for when, one in given if when <= then)
        recent = acked - max(one for when, one in acks if when <= max(0.0, then))
        late = due - acked > 2500 and total - acked > recent + 5000
        assert flight.late(now, PATIENCE, 5000) == late
        seen[late] += 1
    assert min(seen.values()) > 100


def test_memory_of_what_was_given_is_bounded() -> None:
    flight = Flight()
    for at in range(1, 100_000):
        flight.gave(at * 1e-6, 1)
        flight.seen(at * 1e-6, 0)
    assert len(flight._given) <= 1024
    assert len(flight._acks) <= 1024


def test_nothing_is_late_before_a_round_trip_is_known() -> None:
    assert Patience().value == math.inf


def test_half_a_round_trip_may_be_queued() -> None:
    assert made().value == pytest.approx(1.5 * RTT + 0.01)


def test_a_queue_of_its_own_gives_no_more_time() -> None:
    """Else it would let the queue grow, and the queue would give it more."""
    patience = made()
    for _ in range(100):
        patience.sample(PATIENCE + 0.02, RTT, 0.03)
    assert patience.value == pytest.approx(PATIENCE)
    for at in range(100):
        patience.sample(3 * RTT if at % 16 else RTT, RTT, 0.0)
    assert patience.value == pytest.approx(PATIENCE)


def test_a_line_that_has_become_longer_is_believed_after_a_while_and_a_shorter_one_at_once() -> None:
    patience = made()
    for _ in range(16):
        assert patience.value == pytest.approx(PATIENCE)
        patience.sample(0.2, RTT, 0.03)  # the kernel remembers the old one for minutes
    assert patience.value == pytest.approx(1.5 * 0.2 + 0.01)
    patience.sample(0.21, RTT, 0.03)
    assert patience.value == pytest.approx(1.5 * 0.2 + 0.01)
    patience.sample(0.05, RTT, 0.03)
    assert patience.value == pytest.approx(PATIENCE)
