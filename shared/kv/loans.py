"""Block memory lent to chunks while they are being received, and pinned until it is back: by its owner's pin,
which stays where the owner gives the block up before.
"""

from __future__ import annotations

import msgspec

from shared.errors import InvariantBroken
from shared.kv.chunks import Chunk, Target
from shared.kv.pool import BlockPool
from shared.kv.ticket import Landing

_Key = tuple[bytes, int, int, int, int, int]


class Loan(msgspec.Struct, frozen=True):
    """A range of a block's memory that a chunk is being received into."""

    landing: Landing
    at: int  # the block's index in its chain
    first: int
    end: int


class Loans:
    """All memory that is out, by the chunk that has it. Ranges that are out never overlap."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._out: dict[_Key, Loan] = {}

    def __len__(self) -> int:
        return len(self._out)

    def lend(self, chunk: Chunk, landing: Landing, first: int, end: int) -> Target:
        """Hand [first, end) of the landing's block to the chunk."""
        if landing.lent and landing.collides(first, end):
            raise InvariantBroken(f"bytes {first} to {end} of block {landing.block} are lent twice")
        landing.lent.append((first, end))
        key = (chunk.ticket, chunk.group, chunk.shard, chunk.block, chunk.offset, chunk.length)
        self._out[key] = Loan(landing, chunk.block, first, end)
        return Target(landing.block, first, end)

    def take_back(self, chunk: Chunk) -> Loan:
        """The chunk has been received, or never will be."""
        key = (chunk.ticket, chunk.group, chunk.shard, chunk.block, chunk.offset, chunk.length)
        loan = self._out.pop(key, None)
        if loan is None:
            raise InvariantBroken(f"no memory was lent for block {chunk.block} at byte {chunk.offset}")
        landing = loan.landing
        landing.lent.remove((loan.first, loan.end))
        if landing.owner is None:
            self.let_go(landing)
        return loan

    def let_go(self, landing: Landing) -> None:
        """Nobody owns the block any more: it is free once nothing of it is lent."""
        landing.owner = None
        if not landing.lent:
            self._pool.unpin([landing.block])

    def check(self) -> None:
        """Raise InvariantBroken where a lent block could be reused."""
        for loan in self._out.values():
            if not self._pool.refs(loan.landing.block) or (loan.first, loan.end) not in loan.landing.lent:
                raise InvariantBroken(f"block {loan.landing.block} is being received into but not held")
