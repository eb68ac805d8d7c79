"""The receiver's side of all KV transfers: which bytes may be written where, and when a block may be used.

Memory is handed out only for a range of an unpublished block that is neither verified nor being received;
all else goes to scratch. A block is published when its last byte is verified and the chain before it is
published, so nobody ever attends over bytes that did not pass their checksum. No block is reused while a
chunk is being received into it. Pure: checksums are computed, and messages made, by the caller.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.errors import InvariantBroken
from shared.kv.chunks import GONE, SCRATCH, BlockMap, Chunk, Elsewhere, Target
from shared.kv.layout import KvLayout
from shared.kv.pool import BlockPool
from shared.kv.ticket import BlockEvent, BlockState, Landing, Ticket, TicketEvent

_Key = tuple[bytes, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What a Have says of a ticket. Ranges are (block, first, end), in bytes from the block's start.

    The sender sends the blocks of `needs` ([first, end) in the chain) again, less their `ranges`.
    """

    published: int
    ranges: tuple[tuple[int, int, int], ...]
    needs: tuple[tuple[int, int], ...]
    complete: bool


class _Lent(NamedTuple):
    """A range of a block's memory that a chunk is being received into."""

    landing: Landing
    index: int
    first: int
    end: int


class Ledger:
    """All open tickets of one pool."""

    def __init__(self, pool: BlockPool, layout: KvLayout) -> None:
        self._pool = pool
        self._map = BlockMap(layout)
        self._tickets: dict[bytes, Ticket] = {}
        self._carriers: dict[bytes, Ticket] = {}  # by block hash: the ticket that is to bring it
        self._waiters: dict[bytes, dict[bytes, Ticket]] = {}  # by block hash: those awaiting it, oldest first
        self._lent: dict[_Key, _Lent] = {}
        self._changed: dict[bytes, Ticket] = {}

    # --- tickets --------------------------------------------------------------------------------------------

    def get(self, ticket: bytes) -> Ticket | None:
        """The ticket of that name, unless it is closed."""
        return self._tickets.get(ticket)

    def tickets(self) -> list[Ticket]:
        """All that are not closed, oldest first."""
        return list(self._tickets.values())

    def on_its_way(self, hashes: Sequence[bytes], have: int) -> int:
        """How many blocks after the first `have` come under other tickets: `expected` of one opened now.

        They need no promise of their own.
        """
        expected = 0
        while have + expected < len(hashes) and hashes[have + expected] in self._carriers:
            expected += 1
        return expected

    def open(
        self,
        ticket: bytes,
        rid: Hashable,
        hashes: Sequence[bytes],
        blocks: Sequence[int],
        promise: Hashable,
    ) -> Ticket:
        """Expect the blocks of `hashes` [0, upto) beyond the first len(blocks), which the caller has pinned.

        Those pins pass to the ticket. The caller has promised, under `promise`, a block for each missing one
        that `on_its_way` does not count. The key serves this ticket alone (growth may be promised under it
        as well).
        """
        if ticket in self._tickets or not ticket:
            raise InvariantBroken(f"ticket {ticket.hex()!r} is opened twice or has no name")
        if len(blocks) > len(hashes):
            raise InvariantBroken(f"a ticket holds {len(blocks)} of {len(hashes)} blocks")
        made = Ticket(ticket, rid, list(hashes), list(blocks), promise)
        made.expected = self.on_its_way(hashes, made.have)
        states = []
        for hash_ in made.hashes[made.have :]:
            if hash_ in self._carriers:
                states.append(BlockState.AWAITED)
                self._waiters.setdefault(hash_, {})[ticket] = made
            else:
                states.append(BlockState.WANTED)
                self._carriers[hash_] = made
        made.begin(states)
        self._tickets[ticket] = made
        if made.published == made.upto:
            self._complete(made)
        self._advance(made)
        return made

    def close(self, ticket: Ticket) -> list[int]:
        """End a ticket, complete or not; returns its leading published blocks, whose pins become the
        caller's.

        Call it before taking back what is left of the ticket's promise. Blocks that others await under it
        pass, with what has landed of them and the promise for the rest, to the oldest of those, and are then
        in its `needs`. Everything else that is not published is given up: its memory is free as soon as no
        chunk is being received into it.
        """
        ticket.move(TicketEvent.CLOSE)
        del self._tickets[ticket.ticket]
        self._changed.pop(ticket.ticket, None)
        heirs: dict[bytes, Ticket] = {}
        for index in range(ticket.published, ticket.upto):
            hash_ = ticket.hashes[index]
            if ticket.block_state(index) is BlockState.AWAITED:
                self._stop_waiting(hash_, ticket)
            elif hash_ in self._waiters:
                heir = next(iter(self._waiters[hash_].values()))
                self._bequeath(ticket, index, heir)
                heirs[heir.ticket] = heir
            else:
                del self._carriers[hash_]
                self._give_up(ticket.landings.pop(index, None))
        blocks, ticket.blocks = ticket.blocks, []
        for heir in heirs.values():
            self._changed[heir.ticket] = heir
            self._advance(heir)
        return blocks

    def take_changed(self) -> list[Ticket]:
        """Tickets that hold more, need more or became complete since the last call."""
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def refresh(self) -> None:
        """Look for blocks that somebody else has published meanwhile (a sequence that computed them)."""
        for ticket in self.tickets():
            self._advance(ticket)

    def report(self, ticket: Ticket) -> Report:
        """The ticket's state for its sender. `needs` are named once: call it when the report can be sent."""
        ranges = tuple(
            (index, first, end)
            for index in sorted(ticket.landings)
            for first, end in ticket.landings[index].verified
        )
        needs = _runs(sorted(ticket.needs))
        ticket.needs.clear()
        return Report(ticket.published, ranges, needs, ticket.complete)

    # --- chunks ---------------------------------------------------------------------------------------------

    def admit_chunk(self, chunk: Chunk) -> Target | Elsewhere:
        """Where a chunk's bytes are to be received. A Target is held until `verified`, `damaged` or `broken`.

        Raises BadChunk, and changes nothing, where the header names what the ticket does not have.
        """
        ticket = self._tickets.get(chunk.ticket)
        if ticket is None:
            return GONE
        first, end = self._map.span(chunk, ticket.upto)
        ticket.move(TicketEvent.CHUNK)
        self._advance(ticket)
        index = chunk.block
        state = ticket.block_state(index)
        if state is BlockState.WANTED:
            landing = Landing(self._pool.take(1, ticket.promise)[0], ticket)
            ticket.landings[index] = landing
        elif state is BlockState.LANDING:
            landing = ticket.landings[index]
            if landing.collides(first, end):
                landing.refused.append((first, end))
                return SCRATCH
            if landing.verified.overlaps(first, end):
                if not landing.verified.covers(first, end):
                    self._need(ticket, index)
                return SCRATCH
        else:
            return SCRATCH
        ticket.move_block(index, BlockEvent.LEND)
        self._pool.pin([landing.block])
        landing.lent.append((first, end))
        self._lent[_key(chunk)] = _Lent(landing, index, first, end)
        return Target(landing.block, first, end)

    def verified(self, chunk: Chunk) -> None:
        """The chunk is in its Target and its checksum is right."""
        lent = self._take_back(chunk)
        owner = lent.landing.owner
        if owner is None:
            return
        landing = lent.landing
        landing.verified.add(lent.first, lent.end)
        if not landing.verified.covers(0, self._map.block_bytes):
            owner.move_block(lent.index, BlockEvent.VERIFY)
            self._review(owner, lent.index)
            return
        owner.move_block(lent.index, BlockEvent.FILL)
        owner.needs.pop(lent.index, None)
        self._advance(owner)

    def damaged(self, chunk: Chunk) -> None:
        """The chunk is in its Target and its checksum is wrong: the block's missing bytes are asked for
        again.
        """
        self._return(chunk, ask=True)

    def broken(self, chunk: Chunk) -> None:
        """The connection ended inside the chunk: its range may be received again.

        The report after the reconnect tells the sender what is missing.
        """
        self._return(chunk, ask=False)

    def _return(self, chunk: Chunk, *, ask: bool) -> None:
        lent = self._take_back(chunk)
        owner = lent.landing.owner
        if owner is None:
            return
        owner.move_block(lent.index, BlockEvent.RETURN)
        if ask:
            self._need(owner, lent.index)
        self._review(owner, lent.index)

    def _take_back(self, chunk: Chunk) -> _Lent:
        lent = self._lent.pop(_key(chunk), None)
        if lent is None:
            raise InvariantBroken(f"no memory was handed out for block {chunk.block} at {chunk.offset}")
        lent.landing.lent.remove((lent.first, lent.end))
        self._pool.unpin([lent.landing.block])
        return lent

    def _review(self, ticket: Ticket, index: int) -> None:
        """Chunks that were refused because their range was being received: were they the better copy?"""
        landing = ticket.landings[index]
        still = [span for span in landing.refused if landing.collides(*span)]
        lost = [span for span in landing.refused if span not in still and not landing.verified.covers(*span)]
        landing.refused = still
        if lost:
            self._need(ticket, index)

    def _need(self, ticket: Ticket, index: int) -> None:
        ticket.needs[index] = None
        self._changed[ticket.ticket] = ticket

    # --- blocks ---------------------------------------------------------------------------------------------

    def _advance(self, ticket: Ticket) -> None:
        """Publish and pin what is next in the chain, here and in every ticket that awaits it."""
        queue = [ticket]
        while queue:
            current = queue.pop()
            while not current.complete and self._hold_next(current):
                hash_ = current.hashes[current.published - 1]
                queue.extend(self._waiters.get(hash_, {}).values())
                self._changed[current.ticket] = current

    def _hold_next(self, ticket: Ticket) -> bool:
        index = ticket.published
        hash_ = ticket.hashes[index]
        state = ticket.block_state(index)
        block = self._pool.find(hash_)
        if block is not None:
            self._pool.pin([block])
            self._give_up(ticket.landings.pop(index, None))
            ticket.move_block(index, BlockEvent.FOUND)
        elif state is BlockState.FULL:
            block = ticket.landings.pop(index).block
            self._pool.publish(block, hash_, ticket.hashes[index - 1] if index else None)
            ticket.move_block(index, BlockEvent.PUBLISH)
        else:
            return False
        if state is BlockState.AWAITED:
            self._stop_waiting(hash_, ticket)
        else:
            del self._carriers[hash_]
        if state is BlockState.WANTED:
            self._pool.unpromise(ticket.promise, 1)
        ticket.needs.pop(index, None)
        ticket.blocks.append(block)
        ticket.move(TicketEvent.HOLD)
        if ticket.published == ticket.upto:
            self._complete(ticket)
        return True

    def _complete(self, ticket: Ticket) -> None:
        ticket.move(TicketEvent.COMPLETE)
        self._changed[ticket.ticket] = ticket

    def _give_up(self, landing: Landing | None) -> None:
        if landing is not None:
            landing.owner = None
            self._pool.unpin([landing.block])

    def _stop_waiting(self, hash_: bytes, ticket: Ticket) -> None:
        waiters = self._waiters[hash_]
        del waiters[ticket.ticket]
        if not waiters:
            del self._waiters[hash_]

    def _bequeath(self, ticket: Ticket, index: int, heir: Ticket) -> None:
        """Make a waiting ticket the carrier of a block whose own ticket ends."""
        hash_ = ticket.hashes[index]
        self._stop_waiting(hash_, heir)
        self._carriers[hash_] = heir
        landing = ticket.landings.pop(index, None)
        if landing is None:
            heir.move_block(index, BlockEvent.ORPHAN)
            self._pool.unpromise(ticket.promise, 1)
            self._pool.promise(heir.promise, 1)
        else:
            full = ticket.block_state(index) is BlockState.FULL
            heir.move_block(index, BlockEvent.INHERIT_FULL if full else BlockEvent.INHERIT)
            heir.landings[index] = landing
            landing.owner = heir
            if full:
                return
        heir.needs[index] = None

    def check(self) -> None:
        """Raise InvariantBroken where tickets, carriers, waiters and lent ranges contradict one another."""
        for ticket in self._tickets.values():
            if self._pool.promised(ticket.promise) < ticket.unlanded:
                raise InvariantBroken(f"{ticket.unlanded} blocks are to land under a smaller promise")
            for index in range(ticket.have, ticket.upto):
                self._check_block(ticket, index)
        for hash_, carrier in self._carriers.items():
            if self._tickets.get(carrier.ticket) is not carrier:
                raise InvariantBroken(f"a closed ticket is to bring block {hash_.hex()}")
        for lent in self._lent.values():
            if not self._pool.refs(lent.landing.block) or (lent.first, lent.end) not in lent.landing.lent:
                raise InvariantBroken(f"block {lent.landing.block} is being received into but not held")

    def _check_block(self, ticket: Ticket, index: int) -> None:
        hash_ = ticket.hashes[index]
        state = ticket.block_state(index)
        if (state is BlockState.HELD) != (index < ticket.published):
            raise InvariantBroken(f"block {index} is {state.value}, {ticket.published} are published")
        if (state in (BlockState.LANDING, BlockState.FULL)) != (index in ticket.landings):
            raise InvariantBroken(f"block {index} is {state.value} but its memory says otherwise")
        if state is BlockState.HELD:
            return
        carrier = self._carriers.get(hash_)
        if state is BlockState.AWAITED:
            if carrier in (None, ticket) or ticket.ticket not in self._waiters.get(hash_, {}):
                raise InvariantBroken(f"block {index} is awaited under no other ticket")
        elif carrier is not ticket:
            raise InvariantBroken(f"block {index} is {state.value} but another ticket is to bring it")


def _key(chunk: Chunk) -> _Key:
    return (chunk.ticket, chunk.group, chunk.shard, chunk.block, chunk.offset, chunk.length)


def _runs(indices: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending indices as [first, end) runs."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return tuple(runs)
