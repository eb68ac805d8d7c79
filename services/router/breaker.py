"""Keeps work away from a worker that fails, so that failing fast never looks like being idle. Pure; time is
given.
"""

from __future__ import annotations

import enum


class BreakerState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # one request probes


class Breaker:
    """Opens after `failures` in a row; lets one request through when `first` seconds have passed.

    Each failed probe doubles the wait, up to `most`. A probe that has no result in that time makes room for
    another.
    """

    def __init__(self, failures: int, first: float, most: float) -> None:
        self._limit = failures
        self._first = first
        self._most = most
        self._in_row = 0
        self._wait = first
        self._until = 0.0
        self.state = BreakerState.CLOSED

    @property
    def until(self) -> float | None:
        """When a breaker that is not closed lets the next probe through."""
        return None if self.state is BreakerState.CLOSED else self._until

    def allows(self, now: float) -> bool:
        """Whether the worker may be given a request now."""
        return self.state is BreakerState.CLOSED or now >= self._until

    def placed(self, now: float) -> None:
        """A request was given to the worker: unless the breaker is closed, it is the probe."""
        if self.state is not BreakerState.CLOSED and now >= self._until:
            self._until = now + self._wait
            self.state = BreakerState.HALF_OPEN

    def succeeded(self) -> None:
        self._in_row = 0
        self._wait = self._first
        self.state = BreakerState.CLOSED

    def failed(self, now: float) -> None:
        self._in_row += 1
        if self.state is BreakerState.HALF_OPEN:
            self._wait = min(2 * self._wait, self._most)
        elif self.state is BreakerState.OPEN or self._in_row < self._limit:
            return
        self.state = BreakerState.OPEN
        self._until = now + self._wait
