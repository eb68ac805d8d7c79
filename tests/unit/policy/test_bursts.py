"""The rate of a line from bursts shorter than a sample: what left at once arrives at the line's rate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared.policy.bursts import EVERY, Burst

RATE, RTT = 25e6, 0.04
Sent = Callable[[float], float]
"""Bytes that have left so many seconds after the beginning."""


def train(total: int, sent: Sent, *, rate: float = RATE, rtt: float = RTT) -> Burst:
    """A burst that leaves as `sent` says, over a line of `rate`."""
    burst = Burst(100.0, 7, 7, 0)
    now, arrived, last = 100.0, 0.0, 0.0
    while not burst.over(now, rtt):
        now += EVERY
        past = now - 100.0
        arrived = min(sent(past - rtt) if past > rtt else 0.0, arrived + rate * EVERY)
        last = min(total, sent(past))
        burst.point(now, 7 + int(arrived), 7 + int(last), waits=last < total)
    return burst


def at_once(total: int) -> Sent:
    return lambda _: total


def paced(total: int, pace: float) -> Sent:
    return lambda past: min(total, pace * max(0.0, past))


def windows(total: int) -> Sent:
    """A first window of 640 KB, the next a round trip later, twice as fast as the line."""
    first = 640_000
    return lambda past: min(total, first + max(0.0, past - RTT) * 2 * RATE) if past >= 0 else 0.0


@pytest.mark.parametrize(
    ("shape", "total"),
    [
        (at_once, 1_100_000),
        (at_once, 2_000_000),
        (at_once, 3_000_000),
        (windows, 2_000_000),
        (windows, 3_000_000),
    ],
)
def test_what_the_line_has_spread_shows_its_rate(shape: Callable[[int], Sent], total: int) -> None:
    rate, spread = train(total, shape(total)).rate()
    assert spread
    assert rate == pytest.approx(RATE, rel=0.15)


def test_what_left_at_this_sides_pace_shows_at_most_that() -> None:
    rate, spread = train(2_000_000, paced(2_000_000, RATE / 2)).rate()
    assert not spread
    assert rate == pytest.approx(RATE / 2, rel=0.1)


def test_a_short_train_shows_nothing() -> None:
    assert train(300_000, at_once(300_000)).rate() == (0.0, False)


def test_a_burst_is_over_when_its_last_acknowledgements_have_come() -> None:
    burst = Burst(100.0, 0, 0, 0)
    assert not burst.over(100.06, RTT)
    assert burst.over(100.09, RTT)
    burst.point(100.01, 0, 100, waits=False)
    assert not burst.over(100.09, RTT)
    burst.point(100.05, 100, 100, waits=True)
    assert not burst.over(100.12, RTT)


def test_a_burst_without_an_end_is_given_up_after_a_while() -> None:
    burst = Burst(100.0, 0, 0, 0)
    for at in range(1000):
        if burst.over(100.0 + at * EVERY, RTT):
            break
        burst.point(100.0 + at * EVERY, at, at, waits=True)
    assert at < 100
