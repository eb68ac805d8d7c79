"""What a burst that is shorter than a sample shows of a line's rate (pure).

A sample of `LineEstimate` spans two round trips, or a tenth of a second, with bytes waiting all the time:
many bursts of KV are over by then, or fit into the kernel's window at once. What such a burst still shows is
its train of acknowledgements. Bytes that left in less time than they took to arrive were spread by the line,
so their stretch of the train has the line's rate; any other stretch has at most that.
"""

from __future__ import annotations

from itertools import pairwise

_LEAST_STRETCH = 0.038
"""Seconds: a shorter one says more of how acknowledgements clump, and of when they were looked at."""
_SPREAD = 0.6
"""A stretch was spread by the line where its bytes left within this part of it."""
_TAIL = 0.02
"""Seconds beside 1.5 round trips in which a burst's last acknowledgements come."""
_MOST_POINTS = 64
EVERY = 0.004
"""Seconds between two points."""

_Point = tuple[float, int, int]
"""(when, bytes that arrived, bytes that left)."""


class Burst:
    """One burst, from the moment that its first bytes were handed to the kernel."""

    def __init__(self, now: float, delivered: int, sent: int, retransmits: int) -> None:
        self.retransmits = retransmits
        """At its beginning."""
        self._active = now
        self._points: list[_Point] = [(now, delivered, sent)]

    def point(self, now: float, delivered: int, sent: int, *, waits: bool) -> None:
        """`delivered` bytes ever have arrived by now, `sent` have left; `waits`: more are still to leave."""
        if waits or sent > self._points[-1][2]:
            self._active = now
        if len(self._points) < _MOST_POINTS:
            self._points.append((now, delivered, sent))

    def over(self, now: float, rtt: float) -> bool:
        """Whether all of it must have been acknowledged, or it has become longer than a burst."""
        return now > self._active + 1.5 * rtt + _TAIL or len(self._points) >= _MOST_POINTS

    def rate(self) -> tuple[float, bool]:
        """(bytes per second, whether that is the line's rate, not only at most it); 0.0: nothing is known."""
        spread = other = (0.0, 0.0)  # (seconds of the stretch, rate)
        steps = [pair for pair in pairwise(self._points) if pair[0][1] != pair[1][1]]
        for at, ((first, before, _), _) in enumerate(steps):
            left = self._left_at(before)
            for _, (last, after, _) in steps[at:]:
                span, size = last - first, after - before
                if span < _LEAST_STRETCH:
                    continue
                leaving = self._left_at(after) - left
                if leaving <= _SPREAD * span:
                    spread = max(spread, (span, size / span))
                other = max(other, (span, size / max(span, leaving)))
        return (spread[1], True) if spread[0] else (other[1], False)

    def _left_at(self, size: int) -> float:
        """When the byte at `size` had left."""
        return next((when for when, _, sent in self._points if sent >= size), self._points[-1][0])
