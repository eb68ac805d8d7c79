"""KV that this worker receives: tickets, chunks with their checksums, reports to the sender, what is
complete.

The ledger says where bytes may go and what is published; here messages are made of that. Knows no requests:
it says that a ticket has landed or was spoiled, and passes the pins of its blocks on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import xxhash

from shared.errors import BadChunk
from shared.kv.layout import KvLayout
from shared.kv.ledger import Ledger, Target
from shared.kv.report import runs
from shared.kv.ticket import BlockState, Ticket
from shared.wire.messages import Have, KvChunk, Rid
from shared.worker.alignment import Alignments
from shared.worker.site import Site

ASK_AGAIN = 1.0
"""Seconds without progress after which blocks that were asked for are asked for again."""

MOST_DAMAGED = 16
"""Chunks of one ticket that may fail their checksum before it is given up."""

GONE_EVERY = 0.2
"""Seconds between two answers `gone` for the same ticket to the same node."""

ENDED_KEPT = 1024
"""Ended tickets whose request is remembered for the answers to their late chunks."""


@dataclass(slots=True)
class Arrival:
    """One open ticket and what its sender has been told."""

    ticket: bytes
    rid: Rid
    router: str
    book: Ticket
    enough: int  # leading blocks at which it counts as complete: all of them, or an alignment's prompt
    sender: str | None = None  # the node whose chunks came last
    unreported: int = 0  # bytes verified since the last report
    landed_bytes: int = 0
    landed_at: float = float("-inf")  # when bytes were last verified
    damaged: int = 0
    asked: set[int] = field(default_factory=set)  # blocks asked for by `needs`
    asked_at: int = 0  # `landed_bytes` when they were


@dataclass(frozen=True, slots=True)
class Landed:
    """Every block of the ticket is published. The pins of `blocks`, all of its chain, pass to the receiver
    of this.
    """

    rid: Rid
    ticket: bytes
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spoiled:
    """The ticket cannot be completed by its sender. It is still open."""

    rid: Rid
    ticket: bytes
    detail: str


class KvIn:
    """All tickets of this worker."""

    def __init__(self, site: Site, layout: KvLayout) -> None:
        self._site = site
        self.ledger = Ledger(site.pool, layout)
        self._arrivals: dict[bytes, Arrival] = {}
        self._facts: list[Landed | Spoiled] = []
        self._buffers = 0
        self._gone: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._ended: OrderedDict[bytes, Rid] = OrderedDict()
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

    def open(self, rid: Rid, router: str, hashes: list[bytes], blocks: list[int], *, yields: bool) -> Arrival:
        """Expect the blocks after `blocks`, whose pins pass to the ticket. There is room: the caller has
        looked.
        """
        ticket = self._site.rng(16)
        missing = len(hashes) - len(blocks) - self.expected(hashes, len(blocks), yields=yields)
        self._site.pool.promise(("in", ticket), missing)
        book = self.ledger.open(ticket, rid, hashes, blocks, ("in", ticket), yields=yields)
        arrival = self._arrivals[ticket] = Arrival(ticket, rid, router, book, len(hashes))
        self._site.count("transfers_in_total")
        return arrival

    def close(self, ticket: bytes, *, unwanted: bool = False) -> list[int]:
        """End a ticket. Its leading published blocks, whose pins are now the caller's.

        `unwanted`: no router tells the sender, so that whoever it may be has to hear it from here.
        """
        arrival = self._arrivals.pop(ticket)
        if arrival.sender is not None or unwanted:
            for node in self._senders(arrival):
                self._site.outbox.send(node, Have(ticket, arrival.rid, gone=True))
        self.alignments.lost(ticket)
        return self._end(arrival)

    def _end(self, arrival: Arrival) -> list[int]:
        blocks = self.ledger.close(arrival.book)
        self._site.pool.unpromise(("in", arrival.ticket))
        for kind in ("have", "ask"):
            self._site.timers.clear((kind, arrival.ticket))
        self._ended[arrival.ticket] = arrival.rid
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        return blocks

    def align(self, now: float, ticket: bytes, enough: int) -> None:
        """The ticket's request has ended: it goes on alone until `enough` leading blocks are published."""
        arrival = self._arrivals[ticket]
        arrival.enough = min(arrival.enough, enough)
        self.ledger.set_yields(arrival.book, True)
        self.alignments.add(now, ticket)
        if ticket in self._arrivals and arrival.book.published >= arrival.enough:
            self._complete(arrival)

    def drop_aligned(self, rid: Rid) -> None:
        """End the alignments of a request that nobody wants any more."""
        for arrival in self.all():
            if arrival.rid == rid and arrival.ticket in self.alignments:
                self._site.pool.unpin(self.close(arrival.ticket))

    def on_missing(self, ticket: bytes) -> None:
        """The sender has dropped an alignment. Others that waited for its blocks ask for them themselves."""
        self.alignments.drop(ticket)

    def _drop(self, ticket: bytes) -> None:
        arrival = self._arrivals[ticket]
        self._site.outbox.send(arrival.router, Have(ticket, arrival.rid, gone=True))
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
                self.ledger.verified(chunk)
                self._verified(now, node, arrival, chunk)
            else:
                self._damaged(chunk, arrival)
        elif arrival is not None:
            arrival.sender = node
            self._site.count("kv_bytes_drained_total", chunk.length)
            self._site.timers.sooner(("have", chunk.ticket), now + self._site.line.have_every)
        if arrival is None:
            self._answer_gone(now, node, chunk)

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
        if arrival.unreported >= self._site.line.have_bytes:
            self._report(now, arrival)
        else:
            self._site.timers.sooner(("have", arrival.ticket), now + self._site.line.have_every)

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

    def _answer_gone(self, now: float, node: str, chunk: KvChunk) -> None:
        self._site.count("chunks_gone_total")
        key = (node, chunk.ticket)
        if now - self._gone.get(key, -GONE_EVERY) < GONE_EVERY:
            return
        self._gone.pop(key, None)
        self._gone[key] = now
        if len(self._gone) > ENDED_KEPT:
            self._gone.popitem(last=False)
        rid = self._ended.get(chunk.ticket, Rid(0, 0))
        self._site.outbox.send(node, Have(chunk.ticket, rid, gone=True))

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
                    self._report(now, arrival)
                else:
                    self._site.timers.sooner(("have", arrival.ticket), now + self._site.line.have_every)
        facts, self._facts = self._facts, []
        return facts

    def refresh(self) -> None:
        """Blocks were published here by other roads: tickets may want them no more."""
        if self._arrivals:
            self.ledger.refresh()

    def _complete(self, arrival: Arrival) -> None:
        have = Have(arrival.ticket, arrival.rid, published=arrival.book.published, complete=True)
        for node in self._senders(arrival):
            self._site.outbox.send(node, have)
        self._site.outbox.send(arrival.router, have)
        self._site.count("transfers_in_done_total")
        del self._arrivals[arrival.ticket]
        blocks = self._end(arrival)
        if arrival.ticket in self.alignments:
            self.alignments.done(arrival.ticket)
            self._site.pool.unpin(blocks)
        else:
            self._facts.append(Landed(arrival.rid, arrival.ticket, tuple(blocks)))

    def _report(self, now: float, arrival: Arrival, again: tuple[int, ...] = ()) -> None:
        """Tell the sender what has landed and what is needed. Without a known sender only needs are worth
        telling.
        """
        self._site.timers.clear(("have", arrival.ticket))
        arrival.unreported = 0
        if arrival.sender is None and not arrival.book.needs and not again:
            return
        nodes = self._senders(arrival)
        if not nodes:
            self._site.timers.set(("have", arrival.ticket), now + ASK_AGAIN)
            return
        report = self.ledger.report(arrival.book)
        needs = {*again, *(block for first, end in report.needs for block in range(first, end))}
        arrival.asked |= needs
        have = Have(
            arrival.ticket,
            arrival.rid,
            published=report.published,
            ranges=report.ranges,
            needs=runs(sorted(needs)),
        )
        for node in nodes:
            self._site.outbox.send(node, have)
        if needs:
            arrival.asked_at = arrival.landed_bytes
            self._site.timers.set(("ask", arrival.ticket), now + ASK_AGAIN)

    def on_have_due(self, now: float, ticket: bytes) -> None:
        arrival = self._arrivals.get(ticket)
        if arrival is not None:
            self._report(now, arrival)

    def on_ask_due(self, now: float, ticket: bytes) -> None:
        """Blocks that were asked for have not come: the sender may not have known the ticket yet."""
        arrival = self._arrivals.get(ticket)
        if arrival is None:
            return
        lacking = (BlockState.WANTED, BlockState.LANDING)
        arrival.asked = {i for i in arrival.asked if arrival.book.block_state(i) in lacking}
        if not arrival.asked:
            return
        if arrival.landed_bytes > arrival.asked_at:
            arrival.asked_at = arrival.landed_bytes
            self._site.timers.set(("ask", ticket), now + ASK_AGAIN)
        else:
            self._report(now, arrival, tuple(arrival.asked))

    def _senders(self, arrival: Arrival) -> list[str]:
        """The known sender, else every node that might be it: an Attach names the target, not the other way
        round.
        """
        if arrival.sender is not None:
            return [arrival.sender]
        return self._site.peers.workers()

    # --- sessions -------------------------------------------------------------------------------------------

    def on_resumed(self, now: float, node: str) -> None:
        """A connection to the sender broke and is back: it learns first what has landed."""
        for arrival in self._arrivals.values():
            if arrival.sender == node:
                self._report(now, arrival)

    def on_lost(self, node: str) -> None:
        """The sender is lost: what has landed stays; the router finds another one."""
        for arrival in self._arrivals.values():
            if arrival.sender == node:
                arrival.sender = None
