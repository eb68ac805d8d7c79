"""One direction of an emulated line: a shared rate, a propagation delay and a bounded buffer. Pure
arithmetic.

Bytes leave in the order they came (one FIFO bottleneck for all connections), each `delay` seconds after the
line has carried them. Knows no sockets and reads no clock.
"""

from __future__ import annotations


class Shaper:
    """Due times of bytes on one direction of a line."""

    def __init__(self, rate: float, delay: float, buffer_seconds: float) -> None:
        """`rate` in bytes/s (0: unlimited), `delay` one way in seconds, `buffer_seconds` of rate that may
        queue."""
        self.rate = rate
        self.delay = delay
        self.buffer_seconds = buffer_seconds
        self.carried = 0
        self._free_at = 0.0

    def accept(self, now: float, size: int) -> float:
        """Put `size` bytes on the line; the time at which they arrive at the far end."""
        self.carried += size
        start = max(now, self._free_at)
        self._free_at = start + (size / self.rate if self.rate else 0.0)
        return self._free_at + self.delay

    def room_at(self, now: float) -> float:
        """When the buffer has room again: `now` or earlier means it has some."""
        return max(now, self._free_at - self.buffer_seconds) if self.rate else now
