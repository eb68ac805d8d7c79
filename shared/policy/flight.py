"""Whether what one connection was given is acknowledged in time (pure).

Nothing but its own window keeps a kernel from taking more for a line that has fallen silent, and some windows
are several times what the line holds. All that is there when the silence is noticed has to be sent again. So
a connection whose bytes are late is given no more than it gets rid of. Time comes in as seconds of any one
monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque

_TRIPS, _MORE = 1.5, 0.01
_MOST = 1024
_FAR = 16


class Patience:
    """Seconds after which bytes given to a connection are late: one and a half round trips of a line without
    a queue, and 10 ms for the machines at its ends.

    So half a round trip may be queued on the line. A longer queue is held to be somebody else's, or the line
    to have become longer, if 16 samples in a row had it.
    """

    def __init__(self) -> None:
        self.value = math.inf
        self._far = 0  # samples in a row
        self._nearest = math.inf

    def sample(self, rtt: float, least: float, own: float) -> None:
        """The round trip as it is, in seconds, and the least that the kernel remembers, for minutes maybe.
        `own`: seconds by which this side's own bytes may make it longer than the patience."""
        if rtt <= _after(least) or self.value == math.inf:
            self._set(least)
        elif rtt <= self.value + own:
            self._far = 0
        else:
            self._far += 1
            self._nearest = min(self._nearest, rtt)
            if self._far >= _FAR:
                self._set(self._nearest)

    def _set(self, least: float) -> None:
        self.value = _after(least)
        self._far, self._nearest = 0, math.inf


def _after(trip: float) -> float:
    return _TRIPS * trip + _MORE


class Flight:
    """What a connection was given and has got rid of, and when."""

    def __init__(self) -> None:
        self._total = self._due = 0  # bytes given: ever, and early enough to be acknowledged by now
        self._acked = self._before = 0  # bytes acknowledged: ever, and longer ago than the patience
        self._given: deque[tuple[float, int]] = deque(maxlen=_MOST)  # (when, bytes ever after it)
        self._acks: deque[tuple[float, int]] = deque(maxlen=_MOST)

    def gave(self, now: float, size: int) -> None:
        """`size` bytes were handed over."""
        self._total += size
        self._given.append((now, self._total))

    def seen(self, now: float, outstanding: int) -> None:
        """So many of the bytes are not acknowledged now."""
        if self._total - outstanding > self._acked:
            self._acked = self._total - outstanding
            self._acks.append((now, self._acked))

    def late(self, now: float, patience: float, most: int) -> bool:
        """Whether more than half of `most` bytes were given over `patience` seconds ago and are not
        acknowledged, and more are outstanding than were acknowledged in the last `patience` seconds, and
        `most`.

        The second holds back a connection on a line with a queue no longer than until the queue is as short
        as it may be: that its bytes are late is then seen until all of them have arrived.
        """
        given, acks, then = self._given, self._acks, now - patience
        while given and given[0][0] <= then:
            self._due = given.popleft()[1]
        while acks and acks[0][0] <= then:
            self._before = acks.popleft()[1]
        recent = self._acked - self._before
        return self._due - self._acked > most / 2 and self._total - self._acked > recent + most
