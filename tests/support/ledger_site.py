"""A pool with its ledger, used as a worker does."""

from __future__ import annotations

from shared.kv.layout import KvLayout
from shared.kv.ledger import Ledger, Target, Ticket
from shared.kv.pool import BlockPool
from tests.support.kv_chains import HALF, LAYOUT, FakeChunk, hashes_of

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


class Site:
    """A pool with its ledger."""

    def __init__(self, blocks: int = 16, layout: KvLayout = LAYOUT) -> None:
        self.pool = BlockPool(blocks)
        self.ledger = Ledger(self.pool, layout)

    def open(self, ticket: bytes, *path: int, yields: bool = False) -> Ticket:
        """Admit and open as a worker does: match, pin, promise what is missing and not expected."""
        hashes = hashes_of(*path)
        blocks = self.pool.match(hashes)
        self.pool.pin(blocks)
        expected = self.ledger.on_its_way(hashes, len(blocks), yields=yields)
        self.pool.promise(ticket, len(hashes) - len(blocks) - expected)
        return self.ledger.open(ticket, ticket, hashes, blocks, ticket, yields=yields)

    def close(self, ticket: Ticket, *, keep: bool = False) -> list[int]:
        blocks = self.ledger.close(ticket)
        self.pool.unpromise(ticket.promise)
        if not keep:
            self.pool.unpin(blocks)
        return blocks

    def receive(self, ticket: bytes, *blocks: int) -> None:
        """Whole blocks arrive, each as two good chunks."""
        for block in blocks:
            for offset in (0, HALF):
                chunk = FakeChunk(ticket, block, offset)
                assert isinstance(self.ledger.admit_chunk(chunk), Target)
                self.ledger.verified(chunk)
                self.check()

    def changed(self) -> set[bytes]:
        return {ticket.ticket for ticket in self.ledger.take_changed()}

    def check(self) -> None:
        self.pool.check()
        self.ledger.check()
