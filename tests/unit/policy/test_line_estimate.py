"""The estimate beside a line in virtual time: a rate, a buffer, and round trips that differ by themselves."""

from __future__ import annotations

import random

import pytest

from shared.policy.flow import LineEstimate

MB = 1e6


class VirtualLine:
    """A sender that always has something to send, over `rate` bytes/s with a buffer of one BDP.

    A part `noisy` of its round trips take up to `jitter` seconds more, and what is acknowledged in an
    interval is up to a tenth less than what was delivered.
    """

    def __init__(self, rate: float, rtt: float, jitter: float, noisy: float, seed: int = 0) -> None:
        self.rate = rate
        self.now = 0.0
        self.estimate = LineEstimate(10.0)
        self._rtt = rtt
        self._jitter = jitter
        self._noisy = noisy
        self._buffer = rate * rtt
        self._queued = 0.0
        self._draw = random.Random(seed)

    def run(self, seconds: float) -> float:
        """The part of the line's bytes that were carried."""
        carried, until, began = 0.0, self.now + seconds, self.now
        while self.now < until:
            span = self.estimate.interval(self._rtt)
            pace = min(self.estimate.pace(self.now, self._rtt), 4 * self.rate)
            there = self._queued + pace * span
            delivered = min(there, self.rate * span)
            lost = there - delivered > self._buffer
            self._queued = min(there - delivered, self._buffer)
            late = self._draw.uniform(0, self._jitter) if self._draw.random() < self._noisy else 0.0
            waits = self._queued > 0 or late > 0
            clumps = self._draw.uniform(0.9, 1.0) if self._noisy else 1.0
            self.now += span
            carried += delivered
            self.estimate.sample(
                self.now,
                clumps * delivered / span,
                rtt=self._rtt + self._queued / self.rate + late,
                lost=lost,
                limited=waits,
            )
        return carried / (self.rate * (self.now - began))


@pytest.mark.parametrize("noisy", [0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("jitter", [0.005, 0.02, 0.1])
@pytest.mark.parametrize("rtt", [0.0001, 0.01, 0.04, 0.15])
def test_round_trips_that_rise_by_themselves_do_not_pull_the_estimate_down(
    rtt: float, jitter: float, noisy: float
) -> None:
    for seed in range(2):
        line = VirtualLine(2.5 * MB, rtt, jitter, noisy, seed)
        line.run(5.0)
        assert line.run(60.0) > 0.9
        assert line.estimate.rate == pytest.approx(line.rate, rel=0.1)


@pytest.mark.parametrize("noisy", [0.0, 0.5])
@pytest.mark.parametrize("part", [0.1, 0.25, 0.5, 0.7, 0.8, 0.9])
def test_a_line_that_has_become_slower_is_found_within_three_seconds(part: float, noisy: float) -> None:
    line = VirtualLine(25 * MB, 0.04, 0.01, noisy)
    line.run(20.0)
    line.rate *= part
    line.run(3.0)
    assert line.estimate.rate == pytest.approx(line.rate, rel=0.15)


@pytest.mark.parametrize("noisy", [0.0, 0.5])
@pytest.mark.parametrize("factor", [1.25, 2.0, 4.0, 10.0])
def test_a_line_that_has_become_faster_is_found_within_three_seconds(factor: float, noisy: float) -> None:
    line = VirtualLine(6 * MB, 0.04, 0.01, noisy)
    line.run(20.0)
    line.rate *= factor
    line.run(3.0)
    assert line.estimate.rate == pytest.approx(line.rate, rel=0.15)
