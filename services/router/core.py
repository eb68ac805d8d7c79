"""The router's core: the sequencer of its requests. Pure: time and messages in, instructions and events
out.

It owns the rooms (fleet, index, admission, steering) and connects them to two faces: the transport
(ControlCore) and the HTTP side (submit, cancel, stop_at, take_events). It knows nothing of sockets, text or
clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from services.router.admission import Admission
from services.router.cuts import Cuts
from services.router.endings import Endings
from services.router.failures import Failures
from services.router.fleet import Fleet
from services.router.inbound import Inbound
from services.router.index import Index
from services.router.legs import LegState
from services.router.lifecycle import Request
from services.router.lines import Line, Lines
from services.router.meeting import Meeting
from services.router.mesh import Mesh
from services.router.orders import Orders
from services.router.phases import Phase
from services.router.placement import Placement
from services.router.prediction import OutputPrediction, SingularMemory
from services.router.readiness import readiness
from services.router.requests import GenerationRequest, RequestEvent
from services.router.sharing import EVERY, Sharing
from services.router.sources import Sources
from services.router.steering import Steering
from services.router.worker import PoolKey
from shared.errors import DeadlineExceeded, InvalidRequest, MeshError, Unavailable
from shared.kv.hashing import chain_root
from shared.policy.config import LinkPolicy, RouterPolicy, WorkerPolicy
from shared.wire import messages as m
from shared.wire.messages import Message, Rid
from shared.wire.port import Instruction, PeerInfo
from shared.worker.timers import Timers

HOUSEKEEPING = 1.0
"""Seconds between looks at stalled owners."""

ROOM_BURST = 64
"""Waiting requests that are tried again at one event."""


class RouterCore:
    """One router. `incarnation` is made at process start; request ids are (incarnation, counter)."""

    def __init__(
        self,
        node: str,
        datacenter: str,
        incarnation: int,
        policy: RouterPolicy,
        *,
        worker: WorkerPolicy | None = None,
        link: LinkPolicy | None = None,
        lines: Iterable[Line] = (),
    ) -> None:
        self.node = node
        self._incarnation = incarnation
        self._counter = 0
        self._policy = policy
        fleet = Fleet(policy, Lines(lines), datacenter)
        index = Index(policy.index_expected)
        worker = worker or WorkerPolicy()
        placement = Placement(policy, worker, fleet, index)
        self.mesh = Mesh(policy, worker, link or LinkPolicy(), fleet, index, placement)
        self.requests: dict[Rid, Request] = {}
        self._timers = Timers()
        self._prediction = OutputPrediction(policy.session_memory)
        self._singular = SingularMemory(policy.session_memory)
        self._admission = Admission(policy)
        self._orders = Orders(self.mesh)
        self._cuts = Cuts(self.mesh, self._orders)
        self._sources = Sources(self.mesh, self._orders)
        self._endings = Endings(
            self.mesh, self._orders, self._admission, self._prediction, self._singular, self._ended
        )
        self._steering = Steering(self.mesh, self._orders, self._cuts, self._sources, self._endings.no_road)
        self._failures = Failures(self.mesh, self._orders, self._endings)
        self._inbound = Inbound(
            self.mesh,
            self.requests,
            self._orders,
            self._cuts,
            self._steering,
            self._failures,
            self._endings,
            self._touched,
        )
        self._meeting = Meeting(self.mesh)
        self._sharing = Sharing(self.mesh)
        self._handlers = self._table()
        self._draining_since: float | None = None

    # --- the HTTP side --------------------------------------------------------------------------------------

    def submit(self, now: float, spec: GenerationRequest) -> Rid:
        """Take a request. Raises InvalidRequest, Overloaded or Unavailable where it cannot be served now."""
        if self._draining_since is not None:
            raise Unavailable("this router is shutting down; send the request to another one", 1.0)
        self._admission.check(now, len(self.requests))
        pool = self._pool(spec)
        r = self._new_request(now, spec, pool)
        self._steering.advance(now, r)
        if r.refusal is not None:
            self.mesh.count("requests_refused_total")
            raise r.refusal
        r.accepted = True
        self.mesh.count("requests_total")
        self._touched(now, r)
        return r.rid

    def cancel(self, now: float, rid: Rid) -> None:
        """The client is gone: everything of the request is released; no event follows."""
        r = self.requests.get(rid)
        if r is not None and r.phase is not Phase.CLOSING:
            self._endings.cancel(now, r)
            self._serve_waiting(now)

    def stop_at(self, now: float, rid: Rid, at: int) -> None:
        """A stop string was found: the log ends at length `at`. Done follows."""
        r = self.requests.get(rid)
        if r is not None and r.phase is not Phase.CLOSING:
            r.log.cut_short(at)
            assert r.log.end is not None
            self._endings.finish(now, r, r.log.end)
            self._serve_waiting(now)

    def take_events(self) -> list[tuple[Rid, RequestEvent]]:
        """Events since the last call, in order."""
        taken = list(self.mesh.events)
        self.mesh.events.clear()
        return taken

    def ready(self) -> dict[str, Any]:
        """Which pipelines are possible, with reasons; JSON-ready."""
        return readiness(self.mesh, draining=self._draining_since is not None)

    def max_context(self) -> int:
        """Tokens of prompt and output together that a request may have; 0 while no main decode is known."""
        return self.mesh.fleet.max_context()

    def models(self) -> list[str]:
        """Served names that workers have announced."""
        return self.mesh.fleet.models()

    # --- the operator ---------------------------------------------------------------------------------------

    def drain(self, now: float) -> None:
        """SIGTERM: no new request; those being served go on until `policy.drain` is over."""
        if self._draining_since is None:
            self._draining_since = now
            self._timers.set(("drain", None), now + self._policy.drain)

    @property
    def drained(self) -> bool:
        """Whether nothing is being served any more."""
        return not self.requests

    def flush(self) -> None:
        """Have every worker drop the cached blocks that nothing uses."""
        for worker in self.mesh.fleet.all():
            self.mesh.send(worker.node, m.Flush())

    def drain_worker(self, node: str, *, on: bool) -> bool:
        """Have a worker take no new work, or take it again. False: it is not known."""
        if self.mesh.fleet.get(node) is None:
            return False
        self.mesh.send(node, m.Drain(on))
        return True

    def measured_rtt(self, node: str, seconds: float) -> None:
        """A round trip to a node, as the link measured it."""
        self.mesh.fleet.measured_rtt(node, seconds)

    def snapshot(self) -> dict[str, float]:
        """Counters and gauges for /metrics."""
        phases: dict[str, float] = {f"requests_{phase}": 0.0 for phase in Phase}
        for r in self.requests.values():
            phases[f"requests_{r.phase}"] += 1
        index = self.mesh.index
        gauges: dict[str, float] = {
            "requests_live": len(self.requests),
            "requests_waiting": len(self._admission.room),
            "requests_refused": self._admission.refused,
            "index_blocks": index.blocks,
            "index_expected_blocks": index.expected_blocks,
            "index_gaps": index.gaps,
            "workers": len(self.mesh.fleet.all()),
        }
        return {**self.mesh.counters, **gauges, **phases}

    # --- the transport --------------------------------------------------------------------------------------

    def on_session(self, now: float, peer: PeerInfo) -> None:
        """A worker's session has opened."""
        if self.mesh.fleet.get(peer.node) is not None:
            self.on_lost(now, peer.node, "a new session")
        if self.mesh.fleet.opened(now, peer) is not None:
            self.mesh.index.opened(peer.node)

    def on_resumed(self, now: float, node: str) -> None:
        """A connection of a live session is back: nothing was lost."""

    def on_suspect(self, now: float, node: str, suspect: bool) -> None:
        """No sign of life of a worker, or one again."""
        self.mesh.fleet.suspected(node, suspect)
        for r in [r for r in self.requests.values() if r.on(node)]:
            self._look(now, r)
        self._look_at_stuck(now)

    def on_lost(self, now: float, node: str, reason: str) -> None:
        """A worker's session has ended, for whatever reason."""
        del reason
        if self.mesh.fleet.lost(node) is None:
            return
        self.mesh.count("workers_lost_total")
        self.mesh.index.lost(node)
        self._meeting.left(node)
        self._inbound.lost(now, node)
        self._look_at_stuck(now)

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            self.mesh.count("unexpected_messages_total")
            return
        handler(now, node, message, payload)

    def on_timer(self, now: float) -> None:
        """Whatever is due."""
        for kind, whose in self._timers.due(now):
            if kind == "drain":
                self._end_drain(now)
            elif kind == "house":
                self._housekeeping(now)
            elif kind == "share":
                if self._sharing.deal():
                    self._timers.set(("share", None), now + EVERY)
            else:
                r = self.requests.get(whose) if isinstance(whose, Rid) else None
                if r is not None:
                    self._on_request_timer(now, r)

    def next_deadline(self) -> float | None:
        """When `on_timer` is wanted next."""
        return self._timers.next()

    def take_outbox(self) -> list[Instruction]:
        """Instructions since the last call, in order."""
        taken = list(self.mesh.outbox)
        self.mesh.outbox.clear()
        return taken

    # --- messages -------------------------------------------------------------------------------------------

    def _table(self) -> dict[type[Any], Callable[[float, str, Any, bytes], None]]:
        inbound = self._inbound
        return {
            m.Announce: lambda now, node, msg, _: self._announced(now, node, msg),
            m.LoadReport: lambda now, node, msg, _: self._reported(now, node, msg),
            m.KvEvents: lambda _, node, msg, payload: self._kv_events(node, msg, payload),
            m.Snapshot: lambda _, node, msg, payload: self.mesh.index.on_snapshot(node, msg, payload),
            m.Admitted: lambda now, node, msg, _: inbound.admitted(now, node, msg),
            m.Refused: lambda now, node, msg, _: inbound.refused(now, node, msg),
            m.Have: lambda now, node, msg, _: inbound.have(now, node, msg),
            m.CaughtUp: lambda now, node, msg, _: inbound.caught_up(now, node, msg),
            m.TokensOut: lambda now, node, msg, _: inbound.tokens(now, node, msg),
            m.Finished: lambda now, node, msg, _: inbound.finished(now, node, msg),
            m.Failed: lambda now, node, msg, _: inbound.failed(now, node, msg),
            m.Missing: lambda now, node, msg, _: inbound.missing(now, node, msg),
        }

    def _announced(self, now: float, node: str, announce: m.Announce) -> None:
        unlinked = self.mesh.fleet.announced(node, announce)
        if self.mesh.index.sized(node, announce.pool_blocks):
            self.mesh.send(node, m.SnapshotRequest())
        self._meeting.changed()
        if unlinked:
            self._inbound.unlinked(now, node)
        self._look_at_stuck(now)

    def _reported(self, now: float, node: str, report: m.LoadReport) -> None:
        self.mesh.fleet.reported(now, node, report)
        if any(report.unsent_bytes.values()) and not self._timers.has(("share", None)):
            self._timers.set(("share", None), now + EVERY)
        self._serve_waiting(now)

    def _kv_events(self, node: str, events: m.KvEvents, payload: bytes) -> None:
        if self.mesh.index.on_events(node, events, payload):
            self.mesh.send(node, m.SnapshotRequest())

    # --- requests -------------------------------------------------------------------------------------------

    def _pool(self, spec: GenerationRequest) -> PoolKey:
        """The pool that serves a request: of those with its model, the one with most main decodes."""
        if not spec.ids:
            raise InvalidRequest("the prompt has no tokens", "prompt")
        if spec.sampling.max_pos <= len(spec.ids):
            raise InvalidRequest("max_tokens has to be at least 1", "max_tokens")
        pools = self.mesh.fleet.pools()
        if not pools:
            raise Unavailable("no worker has joined this router yet", 2.0)
        return pools[0]

    def _new_request(self, now: float, spec: GenerationRequest, pool: PoolKey) -> Request:
        context = self.max_context()
        sampling = spec.sampling
        if context:
            if len(spec.ids) >= context:
                raise InvalidRequest(
                    f"the prompt has {len(spec.ids)} tokens; with an answer the context takes {context}",
                    "messages",
                )
            if sampling.max_pos > context:
                sampling = msgspec.structs.replace(sampling, max_pos=context)
        self._counter += 1
        rid = Rid(self._incarnation, self._counter)
        root = chain_root(pool.fingerprint, pool.layout, spec.salt)
        deadline = now + (spec.deadline or self._policy.default_deadline)
        r = Request(rid, spec, sampling, pool, root, now, deadline, self._policy.tokens_ahead)
        r.predicted = self._prediction.predict(spec.tenant, spec.session, sampling.max_pos - len(spec.ids))
        r.singular_allowed = spec.singular_allowed and self._singular.allows(r.hashes(len(spec.ids)))
        r.trace.kv_bytes_full = r.prompt_blocks * self.mesh.fleet.block_bytes(pool)
        self.requests[rid] = r
        return r

    def _touched(self, now: float, r: Request) -> None:
        """Look at a request again when it wants to be."""
        if r.phase is Phase.ENDED:
            return
        wait = 2 * self._owner_rtt(r) + self._policy.gap_grace
        at = r.wake_at(now, self._policy.admit_timeout, wait, self._policy.replace_wait)
        self._timers.sooner(("request", r.rid), at)
        if not self._timers.has(("house", None)):
            self._timers.set(("house", None), now + HOUSEKEEPING)

    def _owner_rtt(self, r: Request) -> float:
        leg = r.drawing
        return 0.0 if leg is None else self.mesh.fleet.rtt(leg.node)

    def _ended(self, now: float, r: Request) -> None:
        """Nothing more is to be done for a request."""
        del now
        self.requests.pop(r.rid, None)
        self._inbound.ended(r.rid)
        self._timers.clear(("request", r.rid))

    def _look(self, now: float, r: Request) -> None:
        self._steering.advance(now, r)
        self._touched(now, r)

    def _look_at_stuck(self, now: float) -> None:
        """Who is there has changed: requests without a road look again."""
        for r in list(self.requests.values()):
            if r.blocked_at is not None or r.main is None:
                r.retry_at = None
                if not r.waiting:
                    self._look(now, r)
        self._serve_waiting(now)

    def _serve_waiting(self, now: float) -> None:
        """Place requests that wait for room, in their turn, until one finds none."""
        room = self._admission.room
        for _ in range(ROOM_BURST):
            rid = room.peek()
            if rid is None:
                return
            r = self.requests[rid]
            r.waiting, r.retry_at = False, None
            self._look(now, r)
            if r.waiting:
                return
            room.remove(rid, served=True)

    # --- time -----------------------------------------------------------------------------------------------

    def _on_request_timer(self, now: float, r: Request) -> None:
        policy = self._policy
        if r.phase is Phase.CLOSING:
            if r.closing_at is not None and now >= r.closing_at:
                self._endings.expire(now, r)
            else:
                self._touched(now, r)
            return
        if now >= r.deadline:
            error: MeshError = DeadlineExceeded(
                f"the request's deadline of {r.deadline - r.trace.submitted:.1f} s has passed"
            )
            self._endings.fail(now, r, error)
        elif r.waiting and r.waits_until is not None and now >= r.waits_until:
            self._endings.waited_too_long(now, r)
        elif r.blocked_at is not None and now >= r.blocked_at + policy.replace_wait:
            self._endings.stranded(now, r)
        else:
            self._check_answers(now, r)
            self._check_gap(now, r)
            self._look(now, r)

    def _check_answers(self, now: float, r: Request) -> None:
        for leg in r.decoders():
            if leg.state is LegState.ASKED and now >= leg.asked_at + self._policy.admit_timeout:
                self._failures.unanswered(now, r, leg)

    def _check_gap(self, now: float, r: Request) -> None:
        """Ask the owner for ids that are missing from the log."""
        since, leg = r.log.gap_since, r.drawing
        wait = 2 * self._owner_rtt(r) + self._policy.gap_grace
        if since is None or now < since + wait:
            return
        r.log.asked_again(now)
        if leg is None:
            return
        r.resumes += 1
        if r.resumes > 5:
            self._failures.stalled(now, r, leg)
        else:
            self._orders.resume(r, leg)

    def _housekeeping(self, now: float) -> None:
        """Owners whose engines make no steps are lost (the sessions decide about silent ones)."""
        for worker in self.mesh.fleet.all():
            stalled = worker.drawing and now - worker.progress_at > self.mesh.worker.owner_stall
            if stalled and not worker.suspect:
                worker.breaker.failed(now)
                self._inbound.stalled(now, worker.node)
                worker.progress_at = now
        if self.requests:
            self._timers.set(("house", None), now + HOUSEKEEPING)

    def _end_drain(self, now: float) -> None:
        for r in list(self.requests.values()):
            if r.phase is Phase.CLOSING:
                self._endings.expire(now, r)
            else:
                error = Unavailable("this router has shut down before the answer was finished", 1.0)
                self._endings.fail(now, r, error)
