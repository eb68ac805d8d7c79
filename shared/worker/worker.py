"""A compute node's core: P, relay or main decode. Events of the transport and the engine in, instructions
out.

It is only the face: rooms do the work, and settle with one another after every event. Knows no sockets, no
clock, no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared.engine.engine import Engine
from shared.engine.events import EngineEvent
from shared.kv.layout import KvLayout
from shared.kv.pool import BlockPool
from shared.policy.config import LinePolicy, LinkPolicy, WorkerPolicy
from shared.runtime.tracing import Span
from shared.wire.messages import Announce, KvChunk, Message, Role
from shared.wire.port import Instruction, OutChunk, PeerInfo
from shared.worker.orders import Orders
from shared.worker.rooms import Rooms
from shared.worker.send_queues import LineLoad
from shared.worker.steps import Steps
from shared.worker.worker_site import Site


class Worker:
    """One node's requests, tickets and transfers: a `BulkCore` for the transport, `on_engine` for the engine.

    After any call, perform `take_outbox()`, arm a timer for `next_deadline()`, and wake the engine.
    """

    def __init__(
        self,
        role: Role,
        node: str,
        incarnation: int,
        policy: WorkerPolicy,
        engine: Engine,
        pool: BlockPool,
        view: Callable[[int], memoryview],
        root: Callable[[bytes], bytes],
        announce: Announce,
        rng: Callable[[int], bytes],
        *,
        layout: KvLayout,
        line: LinePolicy | None = None,
        link: LinkPolicy | None = None,
        line_of: Callable[[str], str] = lambda node: node,
        line_rate: Callable[[str], float] = lambda _line: 0.0,
        line_gain: Callable[[str], float] = lambda _line: 1.0,
        line_oldest: Callable[[str], float | None] = lambda _line: None,
        landed: Callable[[int], None] = lambda _block: None,
    ) -> None:
        """`view`: writable bytes of a pool block. `root`: cache salt -> root of the hashes. `rng`: n random
        bytes.

        `landed` is told of each block whose received bytes are whole, before anything computes with it.
        `line_of`: node -> name of the line to it; `line_rate`: line -> bytes/s, 0.0 where unknown;
        `line_gain`: line -> bytes of KV for each byte that it carries, more than 1.0 where it is compressed;
        `line_oldest`: line -> part of its bytes that is for the oldest transfers, None: as configured.
        `announce` says what does not change; draining and peers are filled in.
        """
        self.site = Site(
            node=node,
            role=role,
            incarnation=incarnation,
            policy=policy,
            line=line or LinePolicy(),
            link=link or LinkPolicy(),
            engine=engine,
            pool=pool,
            view=view,
            landed=landed,
            root=root,
            rng=rng,
            block_tokens=layout.block_tokens,
            block_bytes=layout.block_bytes,
            max_context=announce.max_context,
            line_of=line_of,
            line_rate=line_rate,
            line_gain=line_gain,
            line_oldest=line_oldest,
        )
        self._rooms = rooms = Rooms(self.site, layout, announce)
        self._orders = Orders(rooms)
        self._steps = Steps(rooms)
        self._due: dict[str, Callable[[float, Any], object]] = {
            "backstop": lambda _now, rid: self._orders.backstop(rid),
            "hold": rooms.prefilling.on_hold_over,
            "landing": rooms.decoding.on_landing_due,
            "have": rooms.kv_in.on_have_due,
            "ask": rooms.kv_in.on_ask_due,
            "align_in": lambda _now, ticket: rooms.kv_in.alignments.drop(ticket),
            "align_out": lambda _now, ticket: rooms.kv_out.alignments.drop(ticket),
            "report": lambda _now, ticket: rooms.kv_out.on_report_wait(ticket),
            "unreached": lambda _now, ticket: rooms.kv_out.on_unreached(ticket),
            "stall": rooms.kv_out.on_stall,
            "load": lambda now, _: rooms.reports.on_due(now),
            "room": lambda _now, _: None,
            "orphan_pause": lambda _now, router: rooms.orphans.on_pause_due(router),
            "orphan_end": lambda _now, router: rooms.orphans.on_end_due(router),
            "orphan_unasked": lambda _now, router: rooms.orphans.on_unasked_due(router),
        }

    # --- ControlCore ----------------------------------------------------------------------------------------

    def on_session(self, now: float, peer: PeerInfo) -> None:
        """A session has opened."""
        self.site.journal.now = now
        rooms = self._rooms
        self.site.peers.opened(peer)
        if peer.role is Role.ROUTER:
            rooms.orphans.on_session(peer.node, peer.incarnation)
            rooms.settle(now)
            rooms.meeting.greet(peer.node)
            rooms.kv_events.snapshot(peer.node)
        else:
            rooms.kv_out.on_session(peer.node, peer.incarnation)
            rooms.prefilling.on_peer(peer.node)
            rooms.meeting.tell()
        rooms.settle(now)

    def on_resumed(self, now: float, node: str) -> None:
        """A connection broke and is back; bytes on their way may be lost."""
        self.site.journal.now = now
        self._rooms.kv_in.on_resumed(now, node)
        self._rooms.kv_out.on_resumed(now, node)
        self._rooms.settle(now)

    def on_suspect(self, now: float, node: str, suspect: bool) -> None:
        """A peer is silent, or not any more."""
        self.site.journal.now = now
        self.site.peers.suspected(node, suspect)
        if self.site.peers.role(node) is Role.ROUTER:
            self._rooms.orphans.on_suspect(now, node, suspect)
        self._rooms.settle(now)

    def on_lost(self, now: float, node: str, reason: str) -> None:  # noqa: ARG002 - part of the seam
        """A session has ended for good: everything of that peer ends, or waits for its lease."""
        self.site.journal.now = now
        peer = self.site.peers.lost(node)
        if peer is None:
            return
        self._rooms.meeting.lost(node)
        if peer.role is Role.ROUTER:
            self._rooms.orphans.on_lost(now, node)
        else:
            self._rooms.kv_out.on_lost(node)
            self._rooms.kv_in.on_lost(node)
            self._rooms.meeting.tell()
        self._rooms.settle(now)

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None:
        """A control message."""
        self.site.journal.now = now
        self._orders.on_message(now, node, message, payload)
        self._rooms.settle(now)

    def on_timer(self, now: float) -> None:
        """Deadlines have come."""
        self.site.journal.now = now
        due = self.site.timers.due(now)
        for kind, whose in due:
            self._due[kind](now, whose)
        if any(kind != "load" for kind, _ in due):
            self._rooms.settle(now)

    def next_deadline(self) -> float | None:
        """When `on_timer` is wanted."""
        return self.site.timers.next()

    def take_outbox(self) -> list[Instruction]:
        """All instructions since the last call."""
        return self.site.outbox.take()

    # --- BulkCore -------------------------------------------------------------------------------------------

    def chunk_buffer(self, node: str, chunk: KvChunk) -> memoryview | None:  # noqa: ARG002 - part of the seam
        """Block memory for a chunk, None: scratch."""
        return self._rooms.kv_in.chunk_buffer(chunk)

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        """A whole chunk is here."""
        self.site.journal.now = now
        self._rooms.kv_in.on_chunk(now, node, chunk, data, in_place=in_place)
        self._rooms.settle(now)

    def on_chunk_broken(self, node: str, chunk: KvChunk) -> None:  # noqa: ARG002 - part of the seam
        """The connection ended inside a chunk that had block memory."""
        self._rooms.kv_in.on_chunk_broken(chunk)

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        """The next bytes for a node."""
        self.site.journal.now = now
        return self._rooms.kv_out.next_chunk(now, node, limit)

    def chunk_written(self, now: float, node: str, key: int, sent: bool) -> None:  # noqa: ARG002
        """No write buffer refers to a chunk any more. A block that comes free by that may be what a prefill
        waits for."""
        self.site.journal.now = now
        gains = self.site.pool.gains
        self._rooms.kv_out.chunk_written(now, key, sent)
        if self.site.pool.gains != gains and self._rooms.prefilling.queued:
            self.site.timers.sooner(("room", None), now)

    # --- the engine and the service -------------------------------------------------------------------------

    def on_engine(self, now: float, events: Sequence[EngineEvent]) -> None:
        """What a step has brought. No step runs meanwhile."""
        self.site.journal.now = now
        self._steps.on_engine(now, events)
        self._rooms.settle(now)

    def drain(self, now: float) -> None:
        """Take no new work. A relay gives up all it has; P and main decode finish theirs."""
        self.site.journal.now = now
        self._orders.drain(True)
        self._rooms.settle(now)

    @property
    def drained(self) -> bool:
        """Whether a drain is over: no request is here, and nothing but alignments is being sent."""
        counts = self._rooms.counts()
        sending = counts["transfers"] - len(self._rooms.kv_out.alignments) + counts["chunks"]
        return self.site.draining and not counts["prefills"] and not counts["requests"] and not sending

    def stop(self, now: float) -> None:
        """End everything at once, and say so to the routers."""
        self.site.journal.now = now
        self._orders.stop()
        self._rooms.settle(now)

    # --- numbers --------------------------------------------------------------------------------------------

    @property
    def rooms(self) -> Rooms:
        """What is inside, to be looked at."""
        return self._rooms

    @property
    def counters(self) -> dict[str, float]:
        """Totals since the start, for /metrics."""
        return dict(self.site.counters)

    def take_journal(self) -> list[tuple[str, dict[str, Any]]]:
        """One (event, facts) for each request and transfer that ended since the last call, for the log."""
        return self.site.journal.take()

    def record_spans(self) -> None:
        """Somebody takes spans from now on."""
        self.site.journal.tracing = True

    def take_spans(self) -> list[Span]:
        """Stretches of recorded requests' time that ended since the last call."""
        return self.site.journal.take_spans()

    def lines(self, now: float) -> dict[str, LineLoad]:
        """What waits for each line."""
        return self._rooms.kv_out.queues.lines(now)

    def counts(self) -> dict[str, int]:
        """What is held now, by kind; all zero when nothing goes on (I3)."""
        return self._rooms.counts()

    def idle(self) -> bool:
        """Whether nothing is held."""
        return not any(self._rooms.counts().values())

    def check(self) -> None:
        """Raise InvariantBroken where the books of pool and tickets do not add up."""
        self._rooms.check()
