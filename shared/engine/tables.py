"""Block tables: room for new tokens, and the publication of blocks that filled up."""

from __future__ import annotations

from shared.engine.sequence import Sequence
from shared.kv.hashing import extend_chain, pack_ids
from shared.kv.pool import BlockPool


class Tables:
    """Moves blocks between the pool and the tables of sequences."""

    def __init__(self, pool: BlockPool, block_tokens: int) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self._released = 0

    @property
    def changes(self) -> tuple[int, int]:
        """Differs whenever a sequence that found no block should try, and be heard, again.

        A sequence that was given up counts even where its blocks are others' as well and none came free:
        whoever gave it up has to learn that it was not enough.
        """
        return self._pool.gains, self._released

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def reserve(self, sequence: Sequence) -> None:
        """Take the blocks of all known ids. Raises OutOfBlocks, taking none, where they are not to be had."""
        lacking = self.blocks_for(len(sequence.ids)) - sequence.size
        sequence.grow(self._pool.take(lacking, sequence.promise))

    def fit(self, sequence: Sequence, room: int) -> int:
        """Make room for as many new tokens as are wanted, at most `room`; returns how many fit.

        Takes nothing, and returns 0, while nothing has changed since the last time that nothing fitted.
        """
        if sequence.starved_at == self.changes:
            return 0
        if sequence.draws and not sequence.remaining:
            self._reopen(sequence)
        n = min(sequence.remaining, room)
        lacking = self.blocks_for(sequence.computed + n) - sequence.size
        if lacking > 0:
            got = min(lacking, self._pool.room(sequence.promise))
            sequence.grow(self._pool.take(got, sequence.promise))
            n = min(n, sequence.size * self._block_tokens - sequence.computed)
        sequence.starved_at = None if n else self.changes
        return n

    def _reopen(self, sequence: Sequence) -> None:
        """Step back so that the last known id is computed again: its scores are wanted, its KV is there.

        A full block may be shared and is never written again: its tokens come again in a private block.
        """
        length = len(sequence.ids)
        if length % self._block_tokens:
            sequence.computed = length - 1
            return
        while sequence.size * self._block_tokens >= length:
            self._pool.unpin([sequence.cut_block()])
        sequence.computed = sequence.size * self._block_tokens

    def publish(self, sequence: Sequence) -> tuple[int, int] | None:
        """Hash and publish the blocks that are full since the last time; returns them as [first, end)."""
        step = self._block_tokens
        first, end = sequence.ready, sequence.computed // step
        if end <= first:
            return None
        hashes = sequence.hashes
        for index in range(len(hashes), end):
            parent = hashes[-1] if hashes else sequence.root
            hashes.append(extend_chain(parent, pack_ids(sequence.ids[index * step : (index + 1) * step])))
        sequence.ready = end
        if sequence.publish:
            self._publish_range(sequence, first, end)
        return first, end

    def _publish_range(self, sequence: Sequence, first: int, end: int) -> None:
        # A twin's published block may have been evicted since: this sequence's own copy then stands in.
        while first and self._pool.find(sequence.hashes[first - 1]) is None:
            first -= 1
        for index in range(first, end):
            parent = sequence.hashes[index - 1] if index else None
            self._pool.publish(sequence.block(index), sequence.hashes[index], parent)

    def release(self, sequence: Sequence) -> None:
        """Give every pin back: published blocks stay cached, the rest is free."""
        self._pool.unpin(sequence.clear())
        self._released += 1
