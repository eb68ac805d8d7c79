"""One worker's published block hashes, mirrored from sequenced events (hash-granular; no knowledge of
requests).
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.kv.hashing import HASH_BYTES

SPARE = 1024
"""Hashes beyond the announced pool size that a mirror still takes: events of one flush may store before
they remove.
"""


def split(payload: bytes) -> list[bytes]:
    """Hashes of a payload, whose length is a multiple of theirs."""
    return [payload[at : at + HASH_BYTES] for at in range(0, len(payload), HASH_BYTES)]


class Mirror:
    """`seq` is the last event applied; None: nothing is known until a snapshot has come."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seq: int | None = None
        self.asked = False  # a snapshot is on its way
        self.refused = 0  # hashes that found no room
        self.stored: set[bytes] = set()
        self._again: dict[bytes, int] = {}  # hashes stored more often than removed: times beyond the first

    def __len__(self) -> int:
        return len(self.stored)

    def replace(self, seq: int, hashes: Sequence[bytes]) -> None:
        """A snapshot after event `seq`."""
        self.clear()
        self.seq = seq
        self.asked = False
        self.store(hashes)

    def store(self, hashes: Sequence[bytes]) -> None:
        stored, again = self.stored, self._again
        room = self.most + SPARE - len(stored)
        for hash_ in hashes:
            if hash_ in stored:
                again[hash_] = again.get(hash_, 0) + 1
            elif room > 0:
                stored.add(hash_)
                room -= 1
            else:
                self.refused += 1

    def remove(self, hashes: Sequence[bytes]) -> None:
        if not self._again:
            self.stored.difference_update(hashes)
            return
        for hash_ in hashes:
            count = self._again.get(hash_, 0)
            if count > 1:
                self._again[hash_] = count - 1
            elif count:
                del self._again[hash_]
            else:
                self.stored.discard(hash_)

    def clear(self) -> None:
        self.stored = set()
        self._again = {}

    def leading(self, hashes: Sequence[bytes]) -> int:
        """How many leading hashes of a chain are here, by bisection: a pool evicts leaf first."""
        stored = self.stored
        if not hashes or hashes[0] not in stored:
            return 0
        low, high = 1, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in stored:
                low = middle
            else:
                high = middle - 1
        return low
