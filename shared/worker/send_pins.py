"""Pins that keep blocks for sending: transfers' own, and those of finished prefills that wait for an Attach.

They are counted by distinct block, since what is pinned for sending cannot be used for the next prefill.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.kv.pool import BlockPool


class SendPins:
    """Pins on blocks of one pool, each with its number of send holders."""

    def __init__(self, pool: BlockPool, most: int) -> None:
        self._pool = pool
        self._holders: dict[int, int] = {}
        self.most = most

    @property
    def blocks(self) -> int:
        """Distinct blocks that are pinned for sending."""
        return len(self._holders)

    def pin(self, block: int) -> bool:
        """Hold a published block. False where that would break a promise: the block was evictable and none
        is spare.
        """
        if not self._pool.refs(block) and self._pool.available < 1:
            return False
        self._pool.pin([block])
        self._holders[block] = self._holders.get(block, 0) + 1
        return True

    def unpin(self, blocks: Sequence[int]) -> None:
        """End one hold of each block, given in chain order."""
        for block in blocks:
            left = self._holders[block] - 1
            if left:
                self._holders[block] = left
            else:
                del self._holders[block]
        if blocks:
            self._pool.unpin(blocks)
