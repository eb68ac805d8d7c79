"""Two cores that move the same amount of KV round after round, over cuts, with real pools at both ends.

A round is a chain of blocks of its own. The sender takes blocks for it, writes, publishes and keeps them
pinned while the transfer, or a chunk of it in a write buffer, needs them; the receiver's ledger promises,
takes, publishes and pins, and lets the blocks go when all bytes were looked at. Both pools hold fewer blocks
than the rounds have together, so that old rounds are evicted. Knows no requests and no router.
"""

# ruff: noqa: ARG002 (the face of a core fixes the arguments)
from __future__ import annotations

import random
import struct
from collections.abc import Callable

import xxhash

from benchmarks.transport.cores import Quiet
from shared.kv.ledger import Ledger, Target, Ticket
from shared.kv.pool import BlockPool
from shared.kv.report import runs
from shared.kv.ticket import BlockState
from shared.wire.messages import Have, KvChunk, Message, Rid
from shared.wire.port import OutChunk, PeerInfo, Send, WakeBulk

BLOCKS = 32
"""Blocks of a round."""

_POOL = 2 * BLOCKS + BLOCKS // 2
_TICKET = struct.Struct("<Q8x")
_RID = Rid(1, 1)
_LACKING = (BlockState.WANTED, BlockState.LANDING)


def chain(ticket: bytes) -> list[bytes]:
    """Hashes of a round's blocks."""
    return [xxhash.xxh3_128_digest(ticket + at.to_bytes(4, "little")) for at in range(BLOCKS)]


class Content:
    """What a round's blocks hold: the same blocks of noise, one further in each round, so that what is left
    of another round is not taken for right."""

    def __init__(self, block_bytes: int) -> None:
        draw = random.Random(7)
        self._noise = [draw.randbytes(block_bytes) for _ in range(BLOCKS)]

    def block(self, ticket: bytes, at: int) -> bytes:
        (number,) = _TICKET.unpack(ticket)
        return self._noise[(at + int(number)) % BLOCKS]


class RoundsSender(Quiet):
    """Sends what it is asked for: rounds begin with the receiver's first question and end with its word."""

    def __init__(self) -> None:
        super().__init__(_POOL)
        self.pool = BlockPool(_POOL)
        self._content = Content(self.block_bytes)
        self._rounds: dict[bytes, list[int]] = {}  # by ticket: pinned blocks
        self._over: set[bytes] = set()  # rounds that wait for chunks in write buffers alone
        self._waiting: dict[tuple[bytes, int, int], int] = {}  # (ticket, block, first byte): bytes
        self._out: dict[int, bytes] = {}  # by key: ticket of a chunk that a write buffer may refer to
        self._keys = 0

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None:
        if not isinstance(message, Have):
            return
        if message.complete:
            self._end(message.ticket)
            return
        if message.ticket not in self._rounds:
            self._begin(message.ticket)
        for first, end in message.needs:
            for at in range(first, end):
                self._wait(message, at)
        self.outbox.append(WakeBulk(node))

    def on_lost(self, now: float, node: str, reason: str) -> None:
        self.stop()

    def stop(self) -> None:
        """Nobody will ask any more."""
        for ticket in list(self._rounds):
            self._end(ticket)

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        if not self._waiting:
            return None
        (ticket, at, first), left = next(iter(self._waiting.items()))
        del self._waiting[ticket, at, first]
        size = min(left, limit)
        if left > size:
            self._waiting = {(ticket, at, first + size): left - size, **self._waiting}
        place = self._rounds[ticket][at] * self.block_bytes + first
        data = self.memory[place : place + size]
        self._keys += 1
        self._out[self._keys] = ticket
        checksum = xxhash.xxh3_64_intdigest(data)
        return OutChunk(KvChunk(ticket, 0, 0, at, first, size, 0, checksum), data, self._keys)

    def chunk_written(self, now: float, node: str, key: int, sent: bool) -> None:
        ticket = self._out.pop(key)  # KeyError where it was settled before
        if ticket in self._over:
            self._free(ticket)

    def left(self) -> dict[str, int]:
        """What should be nothing after the end."""
        self.pool.check()
        found = {"rounds": len(self._rounds), "pinned blocks": self.pool.pinned}
        return {**found, "chunks not settled": len(self._out)}

    def _begin(self, ticket: bytes) -> None:
        blocks, parent = self.pool.take(BLOCKS), None
        for at, (block, hash_) in enumerate(zip(blocks, chain(ticket), strict=True)):
            base = block * self.block_bytes
            self.memory[base : base + self.block_bytes] = self._content.block(ticket, at)
            self.pool.publish(block, hash_, parent)
            parent = hash_
        self._rounds[ticket] = blocks

    def _wait(self, have: Have, at: int) -> None:
        """All of a block but what the receiver has; instead of what was to be sent of it so far."""
        self._drop(lambda key: key[:2] == (have.ticket, at))
        first = 0
        for block, begin, end in have.ranges:
            if block == at:
                self._ask(have.ticket, at, first, begin)
                first = end
        self._ask(have.ticket, at, first, self.block_bytes)

    def _drop(self, gone: Callable[[tuple[bytes, int, int]], bool]) -> None:
        self._waiting = {key: left for key, left in self._waiting.items() if not gone(key)}

    def _ask(self, ticket: bytes, at: int, first: int, end: int) -> None:
        if end > first:
            self._waiting[ticket, at, first] = end - first

    def _end(self, ticket: bytes) -> None:
        if ticket in self._rounds:
            self._drop(lambda key: key[0] == ticket)
            self._over.add(ticket)
            self._free(ticket)

    def _free(self, ticket: bytes) -> None:
        if ticket not in self._out.values():
            self._over.remove(ticket)
            self.pool.unpin(self._rounds.pop(ticket))
            self.pool.drain_events()


class RoundsReceiver(Quiet):
    """Takes round after round until `last` is set; then the one that runs is the last."""

    def __init__(self) -> None:
        super().__init__(_POOL)
        self.pool = BlockPool(_POOL)
        self.ledger = Ledger(self.pool, self.layout)
        self.last = False
        self.rounds = 0
        self.wrong = 0
        self.got = 0
        """Bytes that were verified."""
        self._content = Content(self.block_bytes)
        self._ticket: Ticket | None = None

    @property
    def over(self) -> bool:
        return self.last and self._ticket is None

    def on_session(self, now: float, peer: PeerInfo) -> None:
        if self._ticket is None and not self.last:
            self._open()
        self._ask(peer.node)

    def on_resumed(self, now: float, node: str) -> None:
        self._ask(node)

    def chunk_buffer(self, node: str, chunk: KvChunk) -> memoryview | None:
        target = self.ledger.admit_chunk(chunk)
        if not isinstance(target, Target):
            return None
        base = target.block * self.block_bytes
        return self.memory[base + target.first : base + target.end]

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        if not in_place:
            return
        if xxhash.xxh3_64_intdigest(data) == chunk.checksum:
            self.ledger.verified(chunk)
            self.got += chunk.length
        else:
            self.wrong += 1
            self.ledger.damaged(chunk)
        self._look(node)

    def on_chunk_broken(self, node: str, chunk: KvChunk) -> None:
        self.ledger.broken(chunk)
        self._look(node)

    def left(self) -> dict[str, int]:
        """What should be nothing after the end."""
        self.pool.check()
        self.ledger.check()
        found = {"wrong": self.wrong, "tickets": len(self.ledger.tickets())}
        return {**found, "pinned blocks": self.pool.pinned, "promised blocks": self.pool.promised_total}

    def _open(self) -> None:
        name = _TICKET.pack(self.rounds)
        self.pool.promise(name, BLOCKS)
        self._ticket = self.ledger.open(name, _RID, chain(name), [], name)

    def _look(self, node: str) -> None:
        for ticket in self.ledger.take_changed():
            if ticket.complete:
                self._complete(node, ticket)
            elif ticket.needs:
                self._tell(node, ticket, self.ledger.report(ticket).needs)

    def _complete(self, node: str, ticket: Ticket) -> None:
        blocks = self.ledger.close(ticket)
        for at, block in enumerate(blocks):
            base = block * self.block_bytes
            here = self.memory[base : base + self.block_bytes]
            self.wrong += here != self._content.block(ticket.ticket, at)
        self.pool.unpromise(ticket.promise)
        self.pool.unpin(blocks)
        self.pool.drain_events()
        self.outbox.append(Send(node, Have(ticket.ticket, _RID, published=BLOCKS, complete=True)))
        self.rounds += 1
        self._ticket = None
        if not self.last:
            self._open()
            self._ask(node)

    def _ask(self, node: str) -> None:
        """For all that is not here."""
        ticket = self._ticket
        if ticket is not None:
            indices = range(ticket.published, ticket.upto)
            self._tell(node, ticket, runs(at for at in indices if ticket.block_state(at) in _LACKING))

    def _tell(self, node: str, ticket: Ticket, needs: tuple[tuple[int, int], ...]) -> None:
        report = self.ledger.report(ticket)
        have = Have(ticket.ticket, _RID, published=report.published, ranges=report.ranges, needs=needs)
        self.outbox.append(Send(node, have))
