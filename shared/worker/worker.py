"""A compute node's core: P, relay or main decode. Events of the transport and the engine in, instructions out.

It only passes things on: a table says which room takes which message, and after every event what one room changed is
told to the others. Knows no sockets, no clock, no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shared.engine.engine import Engine
from shared.engine.events import EngineEvent, Extended, Fault, Finished, Sampled, Starved
from shared.kv.layout import KvLayout
from shared.kv.pool import BlockPool
from shared.policy.config import LinePolicy, LinkPolicy, WorkerPolicy
from shared.wire import messages as m
from shared.wire.port import Instruction, OutChunk, PeerInfo
from shared.worker.admitting import Admitting
from shared.worker.decoding import Decoding
from shared.worker.kv_events import KvEventLog
from shared.worker.kv_in import KvIn
from shared.worker.kv_out import KvOut
from shared.worker.meeting import Meeting
from shared.worker.orphans import Orphans
from shared.worker.prefilling import Prefilling
from shared.worker.pressure import Pressure
from shared.worker.reports import Reports
from shared.worker.site import Site
from shared.worker.sources import Sources

Handler = Callable[[float, str, Any, bytes], None]


class Worker:
    """One node's requests, tickets and transfers: a `BulkCore` for the transport, `on_engine` for the engine."""

    def __init__(
        self,
        role: m.Role,
        node: str,
        incarnation: int,
        policy: WorkerPolicy,
        engine: Engine,
        pool: BlockPool,
        view: Callable[[int], memoryview],
        root: Callable[[bytes], bytes],
        announce: m.Announce,
        rng: Callable[[int], bytes],
        *,
        layout: KvLayout,
        line: LinePolicy | None = None,
        link: LinkPolicy | None = None,
        line_of: Callable[[str], str] = lambda node: node,
        line_rate: Callable[[str], float] = lambda line: 0.0,
    ) -> None:
        """`view`: writable bytes of a pool block. `root`: cache salt -> root of the hashes. `rng`: n random bytes.

        `line_of`: node -> name of the line to it; `line_rate`: line -> bytes/s, 0.0 where unknown.
        """
        self.site = site = Site(
            node=node,
            role=role,
            incarnation=incarnation,
            policy=policy,
            line=line or LinePolicy(),
            link=link or LinkPolicy(),
            engine=engine,
            pool=pool,
            view=view,
            root=root,
            rng=rng,
            block_tokens=layout.block_tokens,
            block_bytes=layout.block_bytes,
            max_context=announce.max_context,
            line_of=line_of,
            line_rate=line_rate,
        )
        self._sources = Sources()
        self._out = KvOut(site, self._sources)
        self._in = KvIn(site, layout)
        self._prefilling = Prefilling(site, self._out)
        self._decoding = Decoding(site, self._in)
        self._sources.join(self._prefilling)
        self._sources.join(self._decoding)
        self._admitting = Admitting(site, self._in, self._decoding)
        self._pressure = Pressure(site, self._in, self._decoding)
        self._orphans = Orphans(site, (self._prefilling, self._decoding))
        self._events = KvEventLog(site)
        self._reports = Reports(site, self._out, self._prefilling)
        self._meeting = Meeting(site, announce)
        self._handlers: dict[type[m.Message], tuple[bool, Handler]] = self._table()
        self._due: dict[str, Callable[[float, Any], None]] = {
            "backstop": self._on_backstop,
            "hold": lambda now, rid: self._prefilling.on_hold_over(rid),
            "have": self._in.on_have_due,
            "ask": self._in.on_ask_due,
            "align_in": lambda now, ticket: self._in.alignments.drop(ticket),
            "align_out": lambda now, ticket: self._out.alignments.drop(ticket),
            "report": self._out.on_report_wait,
            "unreached": self._out.on_unreached,
            "stall": self._out.on_stall,
            "landing": self._decoding.on_landing_due,
            "load": lambda now, _: self._reports.on_due(now),
            "orphan_pause": lambda now, router: self._orphans.on_pause_due(router),
            "orphan_end": lambda now, router: self._orphans.on_end_due(router),
        }

    def _table(self) -> dict[type[m.Message], tuple[bool, Handler]]:
        """Message -> (whether only a router may send it, what takes it)."""
        prefill = self.site.role is m.Role.PREFILL
        table: dict[type[m.Message], tuple[bool, Handler]] = {
            m.Attach: (True, self._on_attach),
            m.Release: (True, self._on_release),
            m.Resume: (True, self._on_resume),
            m.Drain: (True, lambda now, node, message, payload: self._on_drain(message)),
            m.Flush: (True, lambda now, node, message, payload: self.site.pool.clear_cached()),
            m.SnapshotRequest: (True, lambda now, node, message, payload: self._events.snapshot(node)),
            m.Peers: (True, lambda now, node, message, payload: self._meeting.on_peers(message)),
            m.LineShare: (True, lambda now, node, message, payload: None),  # the transport's
            m.Have: (False, self._on_have),
            m.Admit: (True, self._refuse if prefill else self._admitting.on_admit),
            m.Prefill: (True, self._prefilling.on_prefill if prefill else self._refuse),
        }
        if not prefill:
            table[m.Feed] = (True, self._decoding.on_feed)
            table[m.First] = (False, lambda now, node, message, payload: self._decoding.on_first(now, message))
        return table

    # --- ControlCore ----------------------------------------------------------------------------------------

    def on_session(self, now: float, peer: PeerInfo) -> None:
        """A session has opened."""
        self.site.peers.opened(peer)
        if peer.role is m.Role.ROUTER:
            self._orphans.on_session(peer.node, peer.incarnation)
            self._settle(now)
            self._meeting.greet(peer.node)
            self._events.snapshot(peer.node)
        else:
            self._out.on_session(now, peer.node, peer.incarnation)
            self._prefilling.on_peer(peer.node)
            self._meeting.tell()
        self._settle(now)

    def on_resumed(self, now: float, node: str) -> None:
        """A connection broke and is back; bytes on their way may be lost."""
        self._in.on_resumed(now, node)
        self._out.on_resumed(now, node)
        self._settle(now)

    def on_suspect(self, now: float, node: str, suspect: bool) -> None:
        """A peer is silent, or not any more."""
        self.site.peers.suspected(node, suspect)
        if self.site.peers.role(node) is m.Role.ROUTER:
            self._orphans.on_suspect(now, node, suspect)
        self._settle(now)

    def on_lost(self, now: float, node: str, reason: str) -> None:  # noqa: ARG002 - part of the seam
        """A session has ended for good: everything of that peer ends, or waits for its lease."""
        peer = self.site.peers.lost(node)
        if peer is None:
            return
        if peer.role is m.Role.ROUTER:
            self._orphans.on_lost(now, node)
        else:
            self._out.on_lost(node)
            self._in.on_lost(node)
            self._meeting.tell()
        self._settle(now)

    def on_message(self, now: float, node: str, message: m.Message, payload: bytes) -> None:
        """A control message. What this role, or this sender, has no business with is counted and ignored."""
        only_router, handler = self._handlers.get(type(message), (False, None))
        sender = self.site.peers.role(node)
        if handler is None or sender is None or only_router != (sender is m.Role.ROUTER):
            self.site.count("unexpected_messages_total")
            return
        handler(now, node, message, payload)
        self._settle(now)

    def on_timer(self, now: float) -> None:
        """Deadlines have come."""
        for kind, whose in self.site.timers.due(now):
            self._due[kind](now, whose)
        self._settle(now)

    def next_deadline(self) -> float | None:
        """When `on_timer` is wanted."""
        return self.site.timers.next()

    def take_outbox(self) -> list[Instruction]:
        """All instructions since the last call."""
        return self.site.outbox.take()

    # --- BulkCore -------------------------------------------------------------------------------------------

    def chunk_buffer(self, node: str, chunk: m.KvChunk) -> memoryview | None:  # noqa: ARG002 - part of the seam
        """Block memory for a chunk, None: scratch."""
        return self._in.chunk_buffer(chunk)

    def on_chunk(self, now: float, node: str, chunk: m.KvChunk, data: memoryview, in_place: bool) -> None:
        """A whole chunk is here."""
        self._in.on_chunk(now, node, chunk, data, in_place=in_place)
        self._settle(now)

    def on_chunk_broken(self, node: str, chunk: m.KvChunk) -> None:  # noqa: ARG002 - part of the seam
        """The connection ended inside a chunk that had block memory."""
        self._in.on_chunk_broken(chunk)

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        """The next bytes for a node."""
        return self._out.next_chunk(now, node, limit)

    def chunk_written(self, now: float, node: str, key: int, sent: bool) -> None:  # noqa: ARG002
        """No write buffer refers to a chunk any more."""
        self._out.chunk_written(now, key, sent)

    # --- the engine -----------------------------------------------------------------------------------------

    def on_engine(self, now: float, events: Sequence[EngineEvent]) -> None:
        """What a step has brought. Blocks that filled up are found through the pool's own events."""
        starved: list[int] = []
        for event in events:
            if self._prefilling.has(event.seq):
                self._on_prefill_event(now, event)
            elif self._decoding.has(event.seq):
                if isinstance(event, Starved):
                    starved.append(event.seq)
                else:
                    self._on_decode_event(now, event)
        self._prefilling.settle()
        self._decoding.check_limit()
        self._relieve(starved)
        self._settle(now)

    def _on_prefill_event(self, now: float, event: EngineEvent) -> None:
        match event:
            case Sampled():
                self._prefilling.on_sampled(now, event)
            case Finished():
                self._prefilling.on_finished(event)
            case Fault():
                self._prefilling.on_fault(event)

    def _on_decode_event(self, now: float, event: EngineEvent) -> None:
        match event:
            case Sampled():
                self._decoding.on_sampled(event)
            case Extended():
                self._decoding.on_extended(event)
            case Finished():
                self._decoding.on_finished(now, event)
            case Fault():
                self._decoding.on_fault(event)

    def _relieve(self, starved: list[int]) -> None:
        alive = [seq for seq in starved if self._decoding.has(seq)]
        if alive:
            self._pressure.relieve(len(alive))
            if len(alive) == 1 and self._decoding.has(alive[0]):
                self._pressure.fail_alone(self._decoding.of_seq(alive[0]))

    # --- router messages that concern several rooms ---------------------------------------------------------

    def _on_attach(self, now: float, node: str, message: m.Attach, payload: bytes) -> None:
        opened = self._out.on_attach(now, node, message, payload)
        self._prefilling.on_attach(message, opened=opened)

    def _on_have(self, now: float, node: str, message: m.Have, payload: bytes) -> None:  # noqa: ARG002
        self._out.on_have(now, node, message)

    def _on_release(self, now: float, node: str, message: m.Release, payload: bytes) -> None:  # noqa: ARG002
        """The request is over here, up to a term; transfers to main decode may go on as alignments."""
        rid = message.rid
        if message.term < self._sources.term(rid):
            self.site.count("old_term_total")
            return
        prompt_len = self._sources.prompt_len(rid)
        for transfer in self._out.of(rid):
            if message.align and self.site.peers.role(transfer.target) is m.Role.MAIN:
                upto = prompt_len // self.site.block_tokens if prompt_len else None
                self._out.align(now, transfer, upto)
            else:
                self._out.close(transfer)
        self._prefilling.release(rid)
        self._decoding.release(now, rid, align=message.align)

    def _on_resume(self, now: float, node: str, message: m.Resume, payload: bytes) -> None:  # noqa: ARG002
        self._prefilling.on_resume(message)
        self._decoding.on_resume(node, message)

    def _refuse(self, now: float, node: str, message: m.Admit | m.Prefill, payload: bytes) -> None:  # noqa: ARG002
        detail = f"{self.site.node} is a {self.site.role} worker"
        reason = m.RefuseReason.BAD_REQUEST
        self.site.outbox.send(node, m.Refused(message.rid, message.term, reason, 0, detail))

    def _on_backstop(self, now: float, rid: m.Rid) -> None:  # noqa: ARG002
        """A request has outlived its deadline here: its router has forgotten it."""
        detail = f"not released {self.site.policy.backstop:g} s after its deadline"
        self._prefilling.fail(rid, m.FailReason.TIMEOUT, detail)
        part = self._decoding.get(rid)
        if part is not None:
            self._decoding.fail(part, m.FailReason.TIMEOUT, detail)

    # --- drain and stop -------------------------------------------------------------------------------------

    def _on_drain(self, message: m.Drain) -> None:
        self._set_draining(message.on)

    def drain(self, now: float) -> None:
        """Take no new work. A relay gives up all it has (it is disposable); P and main decode finish theirs."""
        self._set_draining(True)
        self._settle(now)

    def _set_draining(self, on: bool) -> None:
        if on == self.site.draining:
            return
        self.site.draining = on
        self._meeting.tell()
        if on:
            self._in.alignments.drop_all()
            if self.site.role is m.Role.RELAY:
                for part in list(self._decoding.all()):
                    self._decoding.fail(part, m.FailReason.DRAIN, f"{self.site.node} drains")

    @property
    def drained(self) -> bool:
        """Whether a drain is over: no request is here, and nothing but alignments is being sent."""
        sending = len(self._out) - len(self._out.alignments) + self._out.writing
        return self.site.draining and not len(self._prefilling) and not len(self._decoding) and not sending

    def stop(self, now: float) -> None:
        """End everything at once, and say so to the routers."""
        self._set_draining(True)
        detail = f"{self.site.node} stops"
        for rid in self._prefilling.all():
            self._prefilling.fail(rid, m.FailReason.DRAIN, detail)
        for part in list(self._decoding.all()):
            self._decoding.fail(part, m.FailReason.DRAIN, detail)
        for transfer in list(self._out.all()):
            self._out.close(transfer)
        self._settle(now)

    # --- numbers --------------------------------------------------------------------------------------------

    @property
    def counters(self) -> dict[str, float]:
        """Totals since the start, for /metrics."""
        return dict(self.site.counters)

    def counts(self) -> dict[str, int]:
        """What is held now: all zero when nothing goes on (I3)."""
        return {
            "prefills": len(self._prefilling),
            "requests": len(self._decoding),
            "tickets": len(self._in),
            "buffers": self._in.buffers,
            "transfers": len(self._out),
            "chunks": self._out.writing,
            "alignments": len(self._in.alignments) + len(self._out.alignments),
            "send_pins": self._out.pins.blocks,
            "pins": self.site.pool.pinned,
            "promises": self.site.pool.promised_total,
        }

    def idle(self) -> bool:
        """Whether nothing is held."""
        return not any(self.counts().values())

    def check(self) -> None:
        """Raise InvariantBroken where the books of pool and tickets do not add up."""
        self.site.pool.check()
        self._in.ledger.check()

    # --- after every event ----------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Tell each room what the others have changed, until nothing changes any more."""
        while True:
            stored, removed, cleared = self.site.pool.drain_events()
            if stored or removed or cleared:
                self._events.tell(stored, removed, cleared)
            if stored:
                self._in.refresh()
                self._out.on_stored(now, stored)
            facts = self._in.settle(now)
            for fact in facts:
                self._decoding.on_fact(now, fact)
            self._prefilling.start_queued(now)
            if not (stored or removed or cleared or facts):
                break
        self._reports.changed(now)
