"""A set of byte positions, kept as merged half-open ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """Sorted, disjoint, non-adjacent [first, end) ranges."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._ends, strict=True))

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def add(self, first: int, end: int) -> None:
        """Add [first, end), merging with what it overlaps or touches."""
        if self._ends and self._ends[-1] == first:  # most come in order
            self._ends[-1] = end
            return
        left = bisect_left(self._ends, first)
        right = bisect_right(self._firsts, end)
        if left < right:
            first = min(first, self._firsts[left])
            end = max(end, self._ends[right - 1])
        self._firsts[left:right] = [first]
        self._ends[left:right] = [end]

    def overlaps(self, first: int, end: int) -> bool:
        """Whether any byte of [first, end) is in the set."""
        at = bisect_right(self._ends, first)
        return at < len(self._firsts) and self._firsts[at] < end

    def covers(self, first: int, end: int) -> bool:
        """Whether every byte of [first, end) is in the set."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and self._ends[at] >= end
