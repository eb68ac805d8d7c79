"""KV that this worker receives: tickets, chunks with their checksums, reports to the sender, what is
complete.

The ledger says where bytes may go and what is published; here messages are made of that. Knows no requests:
it says that a ticket has landed or was spoiled, and passes the pins of its blocks on.
"""

from __future__ import annotations

import xxhash

from shared.errors import BadChunk
from shared.kv.layout import KvLayout
from shared.kv.ledger import Ledger, Target
from shared.wire.messages import KvChunk, Rid, TransferClass
from shared.worker.alignment import Alignments
from shared.worker.arrival import Arrival, Landed, Spoiled
from shared.worker.have_reports import HaveReports
from shared.worker.transfer import URGENT
from shared.worker.worker_site import Site

MOST_DAMAGED = 16
"""Chunks of one ticket that may fail their checksum before it is given up."""


class KvIn:
    """All tickets of this worker."""

    def __init__(self, site: Site, layout: KvLayout) -> None:
        self._site = site
        self.ledger = Ledger(site.pool, layout)
        self._arrivals: dict[bytes, Arrival] = {}
        self._facts: list[Landed | Spoiled] = []
        self._buffers = 0
        self._reports = HaveReports(site, self.ledger)
        self.alignments = Alignments(
            site, "align_in", self._unlanded, lambda tickets: sum(map(self._unlanded, tickets)), self._drop
        )

    # --- numbers --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def buffers(self) -> int:
        """Block memory that the transport is receiving into."""
        return self._buffers

    @property
    def unlanded(self) -> int:
        """Blocks of all tickets that were promised and are not published yet."""
        return sum(self._unlanded(ticket) for ticket in self._arrivals)

    def get(self, ticket: bytes) -> Arrival | None:
        return self._arrivals.get(ticket)

    def all(self) -> list[Arrival]:
        return list(self._arrivals.values())

    def most_to_come(self) -> Arrival | None:
        """The ticket of a live request that has the most blocks to land."""
        live = [a for a in self._arrivals.values() if a.ticket not in self.alignments]
        return max(live, key=lambda a: self._unlanded(a.ticket), default=None)

    def to_come(self, ticket: bytes) -> int:
        """Blocks that a ticket has still to land itself; 0 for an unknown one."""
        return self._unlanded(ticket)

    def _unlanded(self, ticket: bytes) -> int:
        arrival = self._arrivals.get(ticket)
        return 0 if arrival is None else arrival.book.unlanded + len(arrival.book.landings)

    # --- tickets --------------------------------------------------------------------------------------------

    def expected(self, hashes: list[bytes], have: int, *, yields: bool) -> int:
        """Blocks after the first `have` that are on their way under other tickets.

        `yields`: for a transfer that is parked or an alignment, which others do not wait for.
        """
        return self.ledger.on_its_way(hashes, have, yields=yields)

    def open(
        self,
        rid: Rid,
        router: str,
        hashes: list[bytes],
        blocks: list[int],
        *,
        yields: bool,
        trace: str = "",
    ) -> Arrival:
        """Expect the blocks after `blocks`, whose pins pass to the ticket. There is room: the caller has
        looked.
        """
        ticket = self._site.rng(16)
        missing = len(hashes) - len(blocks) - self.expected(hashes, len(blocks), yields=yields)
        self._site.pool.promise(("in", ticket), missing)
        book = self.ledger.open(ticket, rid, hashes, blocks, ("in", ticket), yields=yields)
        arrival = self._arrivals[ticket] = Arrival(
            ticket, rid, router, book, len(hashes), self._site.journal.now, trace
        )
        self._site.count("transfers_in_total")
        return arrival

    def close(self, ticket: bytes, *, unwanted: bool = False) -> list[int]:
        """End a ticket. Its leading published blocks, whose pins are now the caller's.

        `unwanted`: it outlived its request, so that sender and router have to hear it from here.
        """
        arrival = self._arrivals.pop(ticket)
        if arrival.sender is not None or unwanted:
            self._reports.gone(arrival, router=unwanted)
        self.alignments.lost(ticket)
        return self._end(arrival, "dropped" if unwanted else "released")

    def _end(self, arrival: Arrival, outcome: str) -> list[int]:
        self._site.journal.write(
            "kv received",
            arrival.rid,
            arrival.since,
            outcome,
            ticket=arrival.ticket.hex(),
            sender=arrival.sender,
            had=arrival.book.have,
            blocks=arrival.book.published,
            bytes=arrival.landed_bytes,
            damaged=arrival.damaged,
        )
        self._site.journal.span(
            "KV received",
            arrival.trace,
            arrival.rid,
            arrival.since,
            self._site.journal.now,
            "" if outcome in ("complete", "released") else outcome,
            sender=arrival.sender or "",
            blocks=arrival.book.published,
            bytes=arrival.landed_bytes,
        )
        blocks = self.ledger.close(arrival.book)
        self._site.pool.unpromise(("in", arrival.ticket))
        self._reports.ended(arrival)
        return blocks

    def reclass(self, ticket: bytes, cls: TransferClass) -> None:
        """The ticket's transfer has another class: what is parked does not keep others from their blocks."""
        arrival = self._arrivals.get(ticket)
        if arrival is not None and ticket not in self.alignments:
            yields = cls not in URGENT
            if arrival.book.yields is not yields:
                self.ledger.set_yields(arrival.book, yields)

    def align(self, now: float, ticket: bytes, enough: int) -> None:
        """The ticket's request has ended: it goes on alone until `enough` leading blocks are published."""
        arrival = self._arrivals[ticket]
        arrival.enough = min(arrival.enough, enough)
        self.ledger.set_yields(arrival.book, True)
        self.alignments.add(now, ticket)
        if ticket in self._arrivals and arrival.book.published >= arrival.enough:
            self._complete(arrival)
        elif arrival.given_up:
            self.alignments.drop(ticket)

    def drop_aligned(self, rid: Rid) -> None:
        """End the alignments of a request that nobody wants any more."""
        for arrival in self.all():
            if arrival.rid == rid and arrival.ticket in self.alignments:
                self._site.pool.unpin(self.close(arrival.ticket))

    def on_missing(self, ticket: bytes) -> None:
        """The sender has dropped an alignment; that it is one may be told later, by the router. Others that
        waited for its blocks ask for them themselves.
        """
        arrival = self._arrivals.get(ticket)
        if arrival is not None:
            arrival.given_up = True
            self.alignments.drop(ticket)

    def _drop(self, ticket: bytes) -> None:
        self._site.pool.unpin(self.close(ticket, unwanted=True))

    # --- chunks ---------------------------------------------------------------------------------------------

    def chunk_buffer(self, chunk: KvChunk) -> memoryview | None:
        """Block memory for the chunk, or None: scratch. The block stays pinned until the chunk is back
        (I6).
        """
        try:
            target = self.ledger.admit_chunk(chunk)
        except BadChunk:
            return None
        if not isinstance(target, Target):
            return None
        self._buffers += 1
        return self._site.view(target.block)[target.first : target.end]

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, *, in_place: bool) -> None:
        """A whole chunk: verified and counted, or asked for again, or drained."""
        arrival = self._arrivals.get(chunk.ticket)
        if in_place:
            self._buffers -= 1
            if xxhash.xxh3_64_intdigest(data) == chunk.checksum:
                whole = self.ledger.verified(chunk)
                if whole is not None:
                    self._site.landed(whole)
                self._verified(now, node, arrival, chunk)
            else:
                self._damaged(chunk, arrival)
        elif arrival is not None:
            arrival.sender = node
            self._site.count("kv_bytes_drained_total", chunk.length)
            self._reports.soon(now, arrival)
        if arrival is None:
            self._reports.stray(now, node, chunk.ticket)

    def _verified(self, now: float, node: str, arrival: Arrival | None, chunk: KvChunk) -> None:
        if arrival is None:
            return
        arrival.sender = node
        arrival.landed_bytes += chunk.length
        arrival.landed_at = now
        arrival.unreported += chunk.length
        self._site.count("kv_bytes_in_total", chunk.length)
        if arrival.ticket in self.alignments:
            self._site.count("kv_bytes_in_alignment_total", chunk.length)
        self._reports.soon(now, arrival)

    def _damaged(self, chunk: KvChunk, arrival: Arrival | None) -> None:
        self.ledger.damaged(chunk)
        self._site.count("chunks_damaged_total")
        if arrival is None:
            return
        arrival.damaged += 1
        if arrival.damaged == MOST_DAMAGED:
            detail = f"{MOST_DAMAGED} chunks failed their checksum"
            self._facts.append(Spoiled(arrival.rid, arrival.ticket, detail))

    def on_chunk_broken(self, chunk: KvChunk) -> None:
        """The connection ended inside a chunk that had block memory."""
        self._buffers -= 1
        self.ledger.broken(chunk)

    # --- reports --------------------------------------------------------------------------------------------

    def settle(self, now: float) -> list[Landed | Spoiled]:
        """After any event: what has landed or was spoiled; needs that came up are asked for."""
        while changed := self.ledger.take_changed():
            for book in changed:
                arrival = self._arrivals.get(book.ticket)
                if arrival is None:
                    continue
                if book.published >= arrival.enough:
                    self._complete(arrival)
                elif book.needs:
                    self._reports.report(now, arrival)
                else:
                    self._reports.soon(now, arrival)
        facts, self._facts = self._facts, []
        return facts

    def refresh(self) -> None:
        """Blocks were published here by other roads: tickets may want them no more."""
        if self._arrivals:
            self.ledger.refresh()

    def _complete(self, arrival: Arrival) -> None:
        self._reports.complete(arrival)
        self._site.count("transfers_in_done_total")
        del self._arrivals[arrival.ticket]
        blocks = self._end(arrival, "complete")
        if arrival.ticket in self.alignments:
            self.alignments.done(arrival.ticket)
            self._site.pool.unpin(blocks)
        else:
            self._facts.append(Landed(arrival.rid, arrival.ticket, tuple(blocks)))

    def on_have_due(self, now: float, ticket: bytes) -> None:
        """A report's time has come."""
        arrival = self._arrivals.get(ticket)
        if arrival is not None:
            self._reports.report(now, arrival)

    def on_ask_due(self, now: float, ticket: bytes) -> None:
        """Blocks that were asked for should be here."""
        arrival = self._arrivals.get(ticket)
        if arrival is not None:
            self._reports.ask_again(now, arrival)

    # --- sessions -------------------------------------------------------------------------------------------

    def on_resumed(self, now: float, node: str) -> None:
        """A connection to the sender broke and is back: it learns first what has landed."""
        for arrival in self._arrivals.values():
            if arrival.sender == node:
                self._reports.report(now, arrival)

    def on_lost(self, node: str) -> None:
        """The sender is lost: what has landed stays; the router finds another one. Nobody would for an
        alignment: it is dropped, also where its sender has not shown itself yet and may have been the one.
        """
        for arrival in self.all():
            if arrival.ticket in self.alignments and arrival.sender in (node, None):
                arrival.sender = None
                self.alignments.drop(arrival.ticket)
            elif arrival.sender == node:
                arrival.sender, arrival.given_up = None, True
