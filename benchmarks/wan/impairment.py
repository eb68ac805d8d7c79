"""What one direction of a line does to packets: rate, buffer, delay, jitter, loss. Pure arithmetic.

One FIFO bottleneck with a bounded buffer (what does not fit is dropped, as in a router), then
propagation. Packets never overtake each other. Knows no devices and reads no clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Impairment:
    """One direction. Loss is per packet, and a packet may be as large as the device's MTU."""

    rate_mbit: float = 0.0
    """0: no limit."""
    delay_ms: float = 0.0
    """One way."""
    jitter_ms: float = 0.0
    """On top of the delay, evenly drawn."""
    buffer_ms: float = 40.0
    """Of the rate, that may queue at the bottleneck."""
    loss: float = 0.0
    """Part of the packets."""
    burst: float = 1.0
    """Packets that are lost in a row, on average; 1: each by itself."""


class Direction:
    """Due times of packets. `random` decides losses and jitter."""

    def __init__(self, impairment: Impairment, random: random.Random) -> None:
        self.impairment = impairment
        self.rate = impairment.rate_mbit * 1e6 / 8
        self.cut = False
        self.carried = 0
        """Bytes that were let through."""
        self.dropped = 0
        """Packets that were lost by loss, buffer or cut."""
        self._random = random
        self._free_at = 0.0
        self._last_due = 0.0
        self._losing = False

    def accept(self, now: float, size: int) -> float | None:
        """A packet meets the line: when it arrives at the far end, or None where it is lost."""
        if self.cut or self._lost():
            self.dropped += 1
            return None
        start = max(now, self._free_at)
        if self.rate:
            if (start - now) * 1000 > self.impairment.buffer_ms:
                self.dropped += 1
                return None
            self._free_at = start + size / self.rate
        else:
            self._free_at = start
        delay = (self.impairment.delay_ms + self._random.random() * self.impairment.jitter_ms) / 1000
        self._last_due = max(self._last_due, self._free_at + delay)
        self.carried += size
        return self._last_due

    def _lost(self) -> bool:
        """A two-state chain: the losing state is left after `burst` packets, and entered so often that `loss`
        of all packets meet it."""
        loss, burst = self.impairment.loss, max(1.0, self.impairment.burst)
        if not loss:
            return False
        enter = (loss / burst) / (1 - loss + loss / burst)
        if self._losing:
            self._losing = self._random.random() >= 1 / burst
        if not self._losing:
            self._losing = self._random.random() < enter
        return self._losing
