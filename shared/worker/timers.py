"""Named deadlines of a worker, earliest first. Knows no clock: times come in, names of what is due come
out.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable

Key = tuple[str, Hashable]
"""(kind, whose): the kind picks the room that handles it."""


class Timers:
    """One deadline per key; setting it again moves it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._when: dict[Key, tuple[float, int]] = {}
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._when)

    def set(self, key: Key, when: float) -> None:
        """Move the deadline of `key` to `when` (seconds, the caller's clock)."""
        entry = (when, next(self._count))
        self._when[key] = entry
        heapq.heappush(self._heap, (*entry, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._when):
            self._heap = [(when, at, key) for key, (when, at) in self._when.items()]
            heapq.heapify(self._heap)

    def sooner(self, key: Key, when: float) -> None:
        """Set the deadline unless an earlier one is set."""
        known = self._when.get(key)
        if known is None or when < known[0]:
            self.set(key, when)

    def clear(self, key: Key) -> None:
        """Forget `key`, set or not."""
        self._when.pop(key, None)

    def has(self, key: Key) -> bool:
        return key in self._when

    def deadline(self, key: Key) -> float | None:
        """When `key` is due; None where it is not set."""
        known = self._when.get(key)
        return None if known is None else known[0]

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap:
            when, at, key = self._heap[0]
            if self._when.get(key) == (when, at):
                return when
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> list[Key]:
        """Keys whose deadline is not after `now`, in order; they are forgotten."""
        keys: list[Key] = []
        while (when := self.next()) is not None and when <= now:
            key = heapq.heappop(self._heap)[2]
            del self._when[key]
            keys.append(key)
        return keys
