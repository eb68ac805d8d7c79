"""The receiver's side of all KV transfers: which bytes may be written where, and when a block may be used.

Memory is handed out only for a range of an unpublished block that is neither verified nor being received;
all else goes to scratch. A block is published when its last byte is verified and the chain before it is
published, so nobody ever attends over bytes that did not pass their checksum. No block is reused while a
chunk is being received into it. Pure: checksums are computed, and messages made, by the caller.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from shared.errors import InvariantBroken
from shared.kv.carriers import Carriers
from shared.kv.chunks import GONE, SCRATCH, BlockMap, Chunk, Elsewhere, Target
from shared.kv.custody import Custody
from shared.kv.layout import KvLayout
from shared.kv.loans import Loans
from shared.kv.pool import BlockPool
from shared.kv.report import Report
from shared.kv.ticket import BlockEvent, BlockState, Landing, Ticket, TicketEvent, TicketState

__all__ = ["GONE", "SCRATCH", "Elsewhere", "Ledger", "Report", "Target", "Ticket"]


class Ledger:
    """All open tickets of one pool."""

    def __init__(self, pool: BlockPool, layout: KvLayout) -> None:
        self._pool = pool
        self._map = BlockMap(layout)
        self._block_bytes = layout.block_bytes
        self._tickets: dict[bytes, Ticket] = {}
        self._carriers = Carriers()
        self._loans = Loans(pool)
        self._custody = Custody(pool, self._carriers, self._loans)
        self._changed: dict[bytes, Ticket] = {}

    # --- tickets --------------------------------------------------------------------------------------------

    def get(self, ticket: bytes) -> Ticket | None:
        """The ticket of that name, unless it is closed."""
        return self._tickets.get(ticket)

    def tickets(self) -> list[Ticket]:
        """All that are not closed, oldest first."""
        return list(self._tickets.values())

    def on_its_way(self, hashes: Sequence[bytes], have: int, *, yields: bool = False) -> int:
        """How many blocks after the first `have` come under other tickets: `expected` of one opened now.

        They need no promise of their own.
        """
        return self._carriers.leading(hashes, have, yields=yields)

    def open(
        self,
        ticket: bytes,
        rid: Hashable,
        hashes: Sequence[bytes],
        blocks: Sequence[int],
        promise: Hashable,
        *,
        yields: bool = False,
    ) -> Ticket:
        """Expect the blocks of `hashes` [0, upto) beyond the first len(blocks), which the caller has pinned.

        Those pins pass to the ticket. The caller has promised, under `promise`, a block for each missing one
        that `on_its_way` does not count; the key serves this ticket alone (growth may be under it as well).
        `yields`: the transfer is parked or an alignment, so that others do not wait for it but take over.
        """
        if ticket in self._tickets or not ticket:
            raise InvariantBroken(f"ticket {ticket.hex()!r} is opened twice or has no name")
        if len(blocks) > len(hashes):
            raise InvariantBroken(f"a ticket holds {len(blocks)} of {len(hashes)} blocks")
        made = Ticket(ticket, rid, list(hashes), list(blocks), promise)
        made.yields = yields
        made.expected = self.on_its_way(hashes, made.have, yields=yields)
        slow: list[tuple[Ticket, int]] = []
        states = []
        for index in range(made.have, made.upto):
            carrier = self._carriers.carrier(hashes[index])
            if carrier is None:
                self._carriers.carry(hashes[index], made)
                states.append(BlockState.WANTED)
                continue
            self._carriers.wait(hashes[index], made)
            states.append(BlockState.AWAITED)
            if carrier.yields and not yields:
                slow.append((carrier, index))
        made.begin(states)
        self._tickets[ticket] = made
        for carrier, index in slow:
            self._pool.unpromise(promise, 1)  # comes back with the block where it is still to be taken
            self._custody.hand_over(carrier, index, made)
        if made.published == made.upto:
            made.move(TicketEvent.COMPLETE)
            self._changed[ticket] = made
        self._advance(made)
        return made

    def set_yields(self, ticket: Ticket, yields: bool) -> None:
        """The transfer became parked or an alignment, or is urgent again; urgent ones take over from others.

        What they take over from a ticket they had waited for is then in their `needs`.
        """
        ticket.move(TicketEvent.YIELD if yields else TicketEvent.HURRY)
        ticket.yields = yields
        for index in range(ticket.published, ticket.upto):
            hash_ = ticket.hashes[index]
            carrier, heir = self._carriers.carrier(hash_), self._carriers.heir(hash_)
            if carrier is not None and carrier.yields and heir is not None and not heir.yields:
                self._custody.hand_over(carrier, index, heir)
                self._need(heir, index)

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
        for index in range(ticket.published, ticket.upto):
            hash_ = ticket.hashes[index]
            if ticket.block_state(index) is BlockState.AWAITED:
                self._carriers.stop_waiting(hash_, ticket)
            elif (heir := self._carriers.heir(hash_)) is not None:
                self._custody.hand_over(ticket, index, heir)
                self._carriers.stop_waiting(hash_, ticket)
                self._need(heir, index)
            else:
                self._custody.abandon(ticket, index)
        blocks, ticket.blocks = ticket.blocks, []
        return blocks

    def take_changed(self) -> list[Ticket]:
        """Tickets that hold more, need more or became complete since the last call."""
        if not self._changed:
            return []
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def refresh(self) -> None:
        """Look for blocks that somebody else has published meanwhile (a sequence that computed them)."""
        for ticket in self.tickets():
            self._advance(ticket)

    def report(self, ticket: Ticket) -> Report:
        """The ticket's state for its sender. `needs` are named once: call it when the report can be sent."""
        needs = tuple(ticket.needs)
        ticket.needs.clear()
        return Report.of(ticket, needs)

    # --- chunks ---------------------------------------------------------------------------------------------

    def admit_chunk(self, chunk: Chunk) -> Target | Elsewhere:
        """Where a chunk's bytes are received. A Target is held until `verified`, `damaged` or `broken`.

        Raises BadChunk, and changes nothing, where the header names what the ticket does not have.
        """
        ticket = self._tickets.get(chunk.ticket)
        if ticket is None:
            return GONE
        index = chunk.block
        first, end = self._map.span(chunk, len(ticket.hashes))
        ticket.move(TicketEvent.CHUNK)
        self._advance(ticket)
        state = ticket.block_state(index)
        if state is BlockState.AWAITED:  # its bytes are the same under any ticket whose chain has it
            ticket = self._carriers.carrier(ticket.hashes[index]) or ticket
            state = ticket.block_state(index)
        if state is BlockState.WANTED:
            landing = self._custody.land(ticket, index)
        elif state is BlockState.LANDING:
            landing = ticket.landings[index]
            if not self._is_new(ticket, index, landing, first, end):
                return SCRATCH
        else:
            return SCRATCH
        ticket.move_block(index, BlockEvent.LEND)
        return self._loans.lend(chunk, landing, first, end)

    def _is_new(self, ticket: Ticket, index: int, landing: Landing, first: int, end: int) -> bool:
        if landing.lent and landing.collides(first, end):
            landing.refused.append((first, end))
            return False
        if not landing.verified.overlaps(first, end):
            return True
        if not landing.verified.covers(first, end):
            self._need(ticket, index)
        return False

    def verified(self, chunk: Chunk) -> int | None:
        """The chunk is in its Target, its checksum right. The pool's block, where all of it is there."""
        loan = self._loans.take_back(chunk)
        landing, owner = loan.landing, loan.landing.owner
        if owner is None:
            return None
        landing.verified.add(loan.first, loan.end)
        if landing.verified.covers(0, self._block_bytes):
            owner.move_block(loan.at, BlockEvent.FILL)
            owner.needs.pop(loan.at, None)
            self._advance(owner)
            return landing.block
        owner.move_block(loan.at, BlockEvent.VERIFY)
        if landing.refused:
            self._review(owner, loan.at)
        return None

    def damaged(self, chunk: Chunk) -> None:
        """The chunk is in its Target and its checksum is wrong: its block is in `needs` again."""
        self._return(chunk, ask=True)

    def broken(self, chunk: Chunk) -> None:
        """The connection ended inside the chunk: its range may be received again.

        The report after the reconnect tells the sender what is missing.
        """
        self._return(chunk, ask=False)

    def _return(self, chunk: Chunk, *, ask: bool) -> None:
        loan = self._loans.take_back(chunk)
        owner = loan.landing.owner
        if owner is None:
            return
        owner.move_block(loan.at, BlockEvent.RETURN)
        if ask:
            self._need(owner, loan.at)
        self._review(owner, loan.at)

    def _review(self, ticket: Ticket, index: int) -> None:
        """Was a chunk refused, because its range was being received, whose bytes are now lacking?"""
        landing = ticket.landings[index]
        still = [span for span in landing.refused if landing.collides(*span)]
        lost = [span for span in landing.refused if span not in still and not landing.verified.covers(*span)]
        landing.refused = still
        if lost:
            self._need(ticket, index)

    def _need(self, ticket: Ticket, index: int) -> None:
        if ticket.block_state(index) in (BlockState.WANTED, BlockState.LANDING):
            ticket.needs[index] = None
            self._changed[ticket.ticket] = ticket

    # --- blocks ---------------------------------------------------------------------------------------------

    def _advance(self, ticket: Ticket) -> None:
        """Publish and pin what is next in the chain, here and in every ticket that awaits it."""
        queue = [ticket]
        while queue:
            current = queue.pop()
            while current.state is not TicketState.COMPLETE and self._custody.hold_next(current):
                if current.published == current.upto:
                    current.move(TicketEvent.COMPLETE)
                queue.extend(self._carriers.waiters(current.hashes[current.published - 1]))
                self._changed[current.ticket] = current

    def check(self) -> None:
        """Raise InvariantBroken where tickets, promises, carriers and lent memory contradict one another."""
        self._carriers.check(self.tickets())
        self._loans.check()
        for ticket in self._tickets.values():
            ticket.check()
            if self._pool.promised(ticket.promise) < ticket.unlanded:
                raise InvariantBroken(f"{ticket.unlanded} blocks are to land under a smaller promise")
