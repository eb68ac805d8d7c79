"""KV that this worker sends: Attach, open transfers, their pins and reports. Knows no sockets and no
prefills.

Blocks are found in the pool by their chain hash, whoever made them, so P, a relay and a decoder send alike.
A block is pinned from the moment it exists until the receiver reports it, and once more while a chunk of it
is being written (I6).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import xxhash

from shared.wire.messages import (
    Attach,
    Failed,
    FailReason,
    Have,
    KvChunk,
    Missing,
    Rid,
    Role,
    TransferClass,
)
from shared.wire.port import OutChunk
from shared.worker.alignment import Alignments
from shared.worker.attach_check import AttachCheck
from shared.worker.carriage import Carriage
from shared.worker.send_pins import SendPins
from shared.worker.send_queues import SendQueues
from shared.worker.sources import MAY_COME, Source, SourceState
from shared.worker.transfer import Transfer
from shared.worker.worker_site import Site

ENDED_KEPT = 1024
"""Tickets that are remembered after their end, so that a late Attach does not open them again."""

BYTES_OUT = {cls: f"kv_bytes_out_{cls.name.lower()}_total" for cls in TransferClass}
"""Counters by class: each chunk adds to one."""


class KvOut:
    """All transfers out of this worker."""

    def __init__(self, site: Site, source: Source) -> None:
        self._site = site
        self._source = source
        self._open: dict[bytes, Transfer] = {}
        self._by_rid: dict[Rid, set[bytes]] = {}
        self._check = AttachCheck(site, source)
        self._carriage = Carriage()
        self._awaited: dict[bytes, set[bytes]] = {}  # hash of a block to come -> tickets that want it
        self._writing: dict[int, tuple[bytes, int]] = {}
        self._key = 0
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self.queues = SendQueues(site)
        self.alignments = Alignments(site, "align_out", self._held, self._distinct, self._drop)
        self.pins = SendPins(site.pool, int(site.policy.send_pin_fraction * site.pool.total))

    # --- numbers --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._open)

    @property
    def writing(self) -> int:
        """Chunks that a write buffer refers to."""
        return len(self._writing)

    def get(self, ticket: bytes) -> Transfer | None:
        return self._open.get(ticket)

    def of(self, rid: Rid) -> list[Transfer]:
        return [self._open[ticket] for ticket in sorted(self._by_rid.get(rid, ()))]

    def all(self) -> Iterable[Transfer]:
        return self._open.values()

    # --- Attach ---------------------------------------------------------------------------------------------

    def on_attach(self, now: float, router: str, attach: Attach, payload: bytes) -> bool:
        """Open a transfer, or change the class of an open one. False: there is none, and the router has
        been told.
        """
        known = self._open.get(attach.ticket)
        if known is not None:
            self.reclass(known, attach.cls)
            return True
        if attach.ticket in self._ended:
            return False
        hashes = self._check.chain(attach, payload)
        if hashes is None:
            self._site.outbox.send(router, Missing(attach.rid, attach.ticket, attach.have))
            return False
        if attach.have >= attach.upto:
            return True
        self._begin(now, router, attach, hashes)
        return attach.ticket in self._open

    def _begin(self, now: float, router: str, attach: Attach, hashes: list[bytes]) -> None:
        transfer = Transfer(attach, router, hashes, self._site.block_bytes, now)
        self._open[transfer.ticket] = transfer
        self._by_rid.setdefault(transfer.rid, set()).add(transfer.ticket)
        self.queues.resize(transfer)
        self._site.count("transfers_out_total")
        if self._site.peers.get(transfer.target) is None:
            self._site.timers.set(("unreached", transfer.ticket), now + self._site.policy.attach_wait)
        self._changed(self._carriage.begin(transfer))
        self._hurry(transfer)
        self.resolve(transfer)

    def reclass(self, transfer: Transfer, cls: TransferClass) -> None:
        """Give a transfer another class."""
        if transfer.cls is not cls:
            transfer.cls = cls
            self.queues.resize(transfer)
            self._hurry(transfer)
            self.queues.stir(transfer)

    def _hurry(self, transfer: Transfer) -> None:
        """What a transfer's receiver waits for under other tickets comes as soon as the transfer itself."""
        for carrier in self._carriage.awaited(transfer):
            if carrier.cls > transfer.cls:
                self.reclass(carrier, transfer.cls)

    def _changed(self, transfers: Iterable[Transfer]) -> None:
        """Transfers have taken blocks over from one another."""
        for transfer in transfers:
            self.queues.resize(transfer)
            self.queues.stir(transfer)

    # --- blocks come into being -----------------------------------------------------------------------------

    def resolve(self, transfer: Transfer) -> None:
        """Pin the wanted blocks that exist; wait for the others, or say Missing where they cannot come."""
        state = self._source.state(transfer.rid)
        for index in transfer.unresolved:
            if not self._hold(transfer, index, state):
                self._awaited.setdefault(transfer.hashes[index], set()).add(transfer.ticket)
        rest = transfer.unresolved
        if rest and not MAY_COME[state]:
            self._missing(transfer, rest[0])
            return
        self.queues.stir(transfer)

    def _hold(self, transfer: Transfer, index: int, state: SourceState) -> bool:
        block = self._site.pool.find(transfer.hashes[index])
        if block is None or (state is SourceState.QUEUED and self.pins.blocks >= self.pins.most):
            return False
        if not self.pins.pin(block):
            return False
        transfer.held[index] = block
        return True

    def on_stored(self, hashes: Iterable[bytes]) -> None:
        """Blocks were published here: those that transfers wait for are pinned."""
        touched: dict[bytes, None] = {}
        for hash_ in hashes:
            for ticket in self._awaited.pop(hash_, ()):
                touched[ticket] = None
        for ticket in touched:
            transfer = self._open.get(ticket)
            if transfer is not None:
                self.resolve(transfer)

    def source_changed(self, rid: Rid) -> None:
        """The request has started, is done, or has ended without all its blocks."""
        for transfer in self.of(rid):
            self.resolve(transfer)

    # --- reports --------------------------------------------------------------------------------------------

    def on_have(self, now: float, node: str, have: Have) -> bool:
        """A receiver's report. False: no such transfer here."""
        transfer = self._open.get(have.ticket)
        if transfer is None or transfer.target != node:
            if transfer is None and (have.complete or have.gone):
                self._remember(have.ticket)
            return False
        if have.complete or have.gone:
            self._site.count("transfers_out_done_total" if have.complete else "transfers_out_gone_total")
            if have.complete:
                self.alignments.done(transfer.ticket)
                self.pins.unpin(transfer.report(have))
            self.close(transfer, "complete" if have.complete else "gone")
            return True
        before = transfer.acked_bytes
        self.pins.unpin(transfer.report(have))
        if transfer.waits_report:
            self._site.timers.clear(("report", transfer.ticket))
            transfer.rewind()
        if have.needs:
            self._changed(self._carriage.ask(transfer, transfer.want(have.needs)))
            self._hurry(transfer)
            self.resolve(transfer)
            if transfer.ticket not in self._open:
                return True
        self._watch(now, transfer, moved=transfer.acked_bytes > before)
        self.queues.resize(transfer)
        self.queues.stir(transfer)
        return True

    def _watch(self, now: float, transfer: Transfer, *, moved: bool) -> None:
        """A transfer whose bytes stay unacknowledged has stalled."""
        key = ("stall", transfer.ticket)
        if moved:
            self._site.timers.clear(key)
        if transfer.outstanding and not self._site.timers.has(key):
            self._site.timers.set(key, now + 2 * self._site.link.bulk_stall)

    # --- the transport asks ---------------------------------------------------------------------------------

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        """The next bytes for a node, by class and share; its block stays pinned until `chunk_written`."""
        ticket = self.queues.next(node)
        if ticket is None or self._site.peers.get(node) is None:
            return None
        transfer = self._open[ticket]
        index, first, end = transfer.next_span(limit)
        block = transfer.held[index]
        data = self._site.view(block)[first:end]
        self._site.pool.pin([block])
        self._key += 1
        self._writing[self._key] = (ticket, block)
        self.queues.charge(node, ticket, end - first)
        self.queues.stir(transfer)
        self._watch(now, transfer, moved=False)
        self._site.count("kv_bytes_out_total", end - first)
        self._site.count(BYTES_OUT[transfer.cls], end - first)
        header = KvChunk(ticket, 0, 0, index, first, end - first, 0, xxhash.xxh3_64_intdigest(data))
        return OutChunk(header, data, self._key)

    def chunk_written(self, now: float, key: int, sent: bool) -> None:
        """No write buffer refers to the chunk any more. Not sent: what is missing is learned from the next
        report.
        """
        ticket, block = self._writing.pop(key)
        self._site.pool.unpin([block])
        transfer = self._open.get(ticket)
        if not sent and transfer is not None:
            self._await_report(now, transfer)

    def on_resumed(self, now: float, node: str) -> None:
        """A connection to the node broke and is back: bytes on their way may be lost."""
        for transfer in self._open.values():
            if transfer.target == node and transfer.outstanding:
                self._await_report(now, transfer)

    def _await_report(self, now: float, transfer: Transfer) -> None:
        transfer.waits_report = True
        self._site.timers.sooner(("report", transfer.ticket), now + self._site.policy.report_wait)
        self.queues.stir(transfer)

    # --- time -----------------------------------------------------------------------------------------------

    def on_report_wait(self, ticket: bytes) -> None:
        """No report came after a break: go on from the last one; the receiver drains what it has."""
        transfer = self._open.get(ticket)
        if transfer is not None:
            transfer.rewind()
            self.queues.stir(transfer)

    def on_unreached(self, ticket: bytes) -> None:
        """No session with the target has come up."""
        transfer = self._open.get(ticket)
        if transfer is not None and self._site.peers.get(transfer.target) is None:
            self._missing(transfer, transfer.have)

    def on_stall(self, now: float, ticket: bytes) -> None:
        """Nothing was acknowledged for long. While the peer is silent altogether, the link decides, not
        this.
        """
        transfer = self._open.get(ticket)
        if transfer is None or not transfer.outstanding:
            return
        if self._site.peers.is_suspect(transfer.target):
            self._watch(now, transfer, moved=True)
            return
        self._site.count("transfers_out_stalled_total")
        self._site.outbox.send(
            transfer.router,
            Failed(
                transfer.rid,
                self._source.term(transfer.rid),
                transfer.ticket,
                FailReason.STALLED,
                f"{transfer.target} has acknowledged nothing for {2 * self._site.link.bulk_stall:g} s",
            ),
        )
        self._tell_target(transfer, Missing(transfer.rid, transfer.ticket, transfer.published))
        self.close(transfer, "stalled")

    # --- sessions and ends ----------------------------------------------------------------------------------

    def on_session(self, node: str, incarnation: int) -> None:
        """A target's session has opened: transfers to another incarnation of it end."""
        self.queues.met(node)
        for transfer in [t for t in self._open.values() if t.target == node]:
            self._site.timers.clear(("unreached", transfer.ticket))
            if transfer.incarnation != incarnation:
                self._site.count("attach_stale_total")
                self._missing(transfer, transfer.have)
            else:
                self.queues.stir(transfer)

    def on_lost(self, node: str) -> None:
        """The peer is lost: everything that was to go there ends."""
        for transfer in [t for t in self._open.values() if t.target == node]:
            self.close(transfer, "peer lost")

    def align(self, now: float, transfer: Transfer, upto: int | None) -> None:
        """The request has ended: its transfer goes on as an alignment, up to the prompt's `upto` blocks."""
        if upto is not None:
            self._end_carriage(transfer, [block for block in transfer.wanted if block >= upto])
            self.pins.unpin(transfer.shorten(upto))
            self.queues.resize(transfer)
        self.reclass(transfer, TransferClass.ALIGNMENT)
        self.queues.stir(transfer)
        self.alignments.add(now, transfer.ticket)

    def _held(self, ticket: bytes) -> int:
        transfer = self._open.get(ticket)
        return 0 if transfer is None else len(transfer.held)

    def _distinct(self, tickets: Iterable[bytes]) -> int:
        """Blocks that transfers hold, each counted once."""
        held: set[int] = set()
        for ticket in tickets:
            transfer = self._open.get(ticket)
            if transfer is not None:
                held.update(transfer.held.values())
        return len(held)

    def _drop(self, ticket: bytes) -> None:
        """Its blocks are needed, or its time is over: the router learns that the rest will not come."""
        transfer = self._open[ticket]
        self._missing(transfer, transfer.published)

    def _end_carriage(self, transfer: Transfer, blocks: list[int]) -> None:
        self._changed(self._carriage.end(transfer, blocks, self._open.values()))

    def _trace(self, transfer: Transfer, outcome: str) -> None:
        """How long it took. One that outlived its request is an alignment."""
        journal = self._site.journal
        if not journal.tracing:
            return
        relay = self._site.peers.role(transfer.target) is Role.RELAY
        journal.span(
            "alignment" if transfer.cls is TransferClass.ALIGNMENT else "KV transfer",
            transfer.trace,
            transfer.rid,
            transfer.opened_at,
            journal.now,
            "" if outcome in ("complete", "released", "gone") else outcome,
            road="LAN" if relay else "WAN",
            line=self._site.line_of(transfer.target),
            target=transfer.target,
            cls=transfer.cls.name.lower(),
            blocks=len(transfer.wanted),
            bytes=transfer.total_bytes - transfer.unsent_bytes,
        )

    def close(self, transfer: Transfer, outcome: str = "released") -> None:
        """End a transfer and its pins. Chunks that are being written keep theirs."""
        self._site.journal.write(
            "kv sent",
            transfer.rid,
            transfer.opened_at,
            outcome,
            ticket=transfer.ticket.hex(),
            target=transfer.target,
            cls=transfer.cls.name.lower(),
            blocks=len(transfer.wanted),
            bytes=transfer.acked_bytes,
        )
        self._trace(transfer, outcome)
        self.alignments.lost(transfer.ticket)
        del self._open[transfer.ticket]
        tickets = self._by_rid[transfer.rid]
        tickets.discard(transfer.ticket)
        if not tickets:
            del self._by_rid[transfer.rid]
        for hash_ in transfer.hashes:
            waiting = self._awaited.get(hash_)
            if waiting is not None:
                waiting.discard(transfer.ticket)
                if not waiting:
                    del self._awaited[hash_]
        self.pins.unpin([transfer.held[index] for index in sorted(transfer.held)])
        transfer.held.clear()
        self.queues.leave(transfer)
        self._end_carriage(transfer, transfer.wanted)
        for kind in ("report", "stall", "unreached"):
            self._site.timers.clear((kind, transfer.ticket))
        self._remember(transfer.ticket)

    def _missing(self, transfer: Transfer, first: int) -> None:
        self._site.count("transfers_out_missing_total")
        missing = Missing(transfer.rid, transfer.ticket, first)
        self._site.outbox.send(transfer.router, missing)
        self._tell_target(transfer, missing)
        self.close(transfer, "missing")

    def _tell_target(self, transfer: Transfer, missing: Missing) -> None:
        """An alignment has no router that would ask its receiver again: the receiver itself is told."""
        if transfer.cls is TransferClass.ALIGNMENT and self._site.peers.get(transfer.target) is not None:
            self._site.outbox.send(transfer.target, missing)

    def _remember(self, ticket: bytes) -> None:
        self._ended[ticket] = None
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
