"""The router's core: the sequencer of its requests. Pure: time and messages in, instructions and events
out.

It owns the rooms (fleet, index, admission, steering) and connects them to two faces: the transport
(ControlCore) and the HTTP side (submit, cancel, stop_at, take_events). It knows nothing of sockets, text or
clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from services.router.admissions import Admissions
from services.router.audit import Audit, Finding
from services.router.cuts import Cuts
from services.router.endings import Endings
from services.router.failures import Failures
from services.router.fleet import Fleet
from services.router.gate import Gate
from services.router.inbound import Inbound
from services.router.index import Index
from services.router.lifecycle import Request
from services.router.lines import Line, Lines
from services.router.meeting import Meeting
from services.router.mesh import Mesh
from services.router.observer import Observer
from services.router.orders import Orders
from services.router.phases import Phase
from services.router.picture import Picture
from services.router.placement import Placement
from services.router.prediction import OutputPrediction, SingularMemory
from services.router.readiness import readiness
from services.router.recent import RecentSessions
from services.router.requests import GenerationRequest, RequestEvent
from services.router.rewarm import Rewarm
from services.router.sharing import RENEW, Sharing
from services.router.sources import Sources
from services.router.steering import Steering
from services.router.watch import Watch
from shared.errors import Unavailable
from shared.policy.config import LinePolicy, LinkPolicy, RouterPolicy, WorkerPolicy
from shared.wire import messages as m
from shared.wire.messages import Message, Rid, Role
from shared.wire.port import Instruction, PeerInfo
from shared.worker.timers import Timers

HOUSEKEEPING = 1.0
"""Seconds between looks at stalled owners."""


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
        line: LinePolicy | None = None,
        lines: Iterable[Line] = (),
        templates: Mapping[str, str] | None = None,
    ) -> None:
        """`templates`: of the models that ids come in for, by served name; None: any worker's will do."""
        self.node = node
        self._models = tuple(templates or ())
        self.requests: dict[Rid, Request] = {}
        self._policy = policy
        self._draining = False
        self._timers = Timers()
        self._admissions = Admissions(policy)
        worker = worker or WorkerPolicy()
        fleet, index = Fleet(policy, Lines(lines), datacenter, templates), Index(policy.index_expected)
        placement = Placement(policy, worker, fleet, index)
        mesh = self.mesh = Mesh(policy, worker, link or LinkPolicy(), fleet, index, placement)
        prediction = OutputPrediction(policy.session_memory)
        singular, recent = SingularMemory(policy.session_memory), RecentSessions(policy.session_memory)
        orders = Orders(mesh)
        cuts, sources = Cuts(mesh, orders), Sources(mesh, orders)
        self._cuts = cuts
        self._endings = Endings(mesh, orders, self._admissions, prediction, singular, recent, self._ended)
        steering = Steering(mesh, orders, cuts, sources, self._endings.no_road)
        failures = Failures(mesh, orders, self._endings)
        watch = self._watch = Watch(
            mesh, self.requests, self._timers, orders, steering, failures, self._endings
        )
        self._inbound = Inbound(
            mesh, self.requests, orders, cuts, steering, failures, self._endings, watch.touched
        )
        self._gate = Gate(
            mesh, self.requests, self._admissions, prediction, singular, sources, watch, incarnation
        )
        self._rewarm = Rewarm(mesh, recent, self._gate.new_rid)
        self._meeting = Meeting(mesh)
        self.observer = Observer(node, datacenter, mesh, self.requests)
        self._sharing = Sharing(mesh, (line or LinePolicy()).oldest_share)
        self._audit = Audit(mesh)
        self._handlers = self._table()

    # --- the HTTP side --------------------------------------------------------------------------------------

    def submit(self, now: float, spec: GenerationRequest) -> Rid:
        """Take a request. Raises InvalidRequest, Overloaded or Unavailable where it cannot be served now."""
        if self._draining:
            raise Unavailable("this router is shutting down; send the request to another one", 1.0)
        rid = self._gate.submit(now, spec)
        if not self._timers.has(("house", None)):
            self._timers.set(("house", None), now + HOUSEKEEPING)
        return rid

    def cancel(self, now: float, rid: Rid) -> None:
        """The client is gone: everything of the request is released; no event follows."""
        r = self.requests.get(rid)
        if r is not None and r.phase is not Phase.CLOSING:
            self._endings.cancel(now, r)
            self._gate.serve_waiting(now)

    def stop_at(self, now: float, rid: Rid, at: int) -> None:
        """A stop string was found: the log ends at length `at`. Done follows."""
        r = self.requests.get(rid)
        if r is not None and r.phase is not Phase.CLOSING:
            r.log.cut_short(at)
            assert r.log.end is not None
            self._endings.finish(now, r, r.log.end)
            self._gate.serve_waiting(now)

    def take_events(self) -> list[tuple[Rid, RequestEvent]]:
        """Events since the last call, in order."""
        taken = list(self.mesh.events)
        self.mesh.events.clear()
        return taken

    def ready(self) -> dict[str, Any]:
        """Which pipelines are possible, with reasons; JSON-ready."""
        return readiness(self.mesh, draining=self._draining, models=self._models)

    def max_context(self, model: str = "") -> int:
        """Tokens of prompt and output together that a request (for a served name) may have; 0 while no main
        decode is known."""
        return self.mesh.fleet.max_context(model)

    def fingerprint(self, model: str) -> str:
        """What runs under a served name now; empty while no worker of it is known."""
        pools = self.mesh.fleet.pools(model)
        return pools[0].fingerprint if pools else ""

    def models(self) -> list[str]:
        """Served names that workers have announced."""
        return self.mesh.fleet.models()

    # --- the operator ---------------------------------------------------------------------------------------

    def drain(self, now: float) -> None:
        """SIGTERM: no new request; those being served go on until `policy.drain` is over."""
        if not self._draining:
            self._draining = True
            self._timers.set(("drain", None), now + self._policy.drain)

    @property
    def drained(self) -> bool:
        """Whether nothing is being served any more."""
        return not self.requests

    def flush(self) -> None:
        """Have every worker drop the cached blocks that nothing uses."""
        for worker in self.mesh.fleet.all():
            self.mesh.send(worker.node, m.Flush())

    def flush_worker(self, node: str) -> bool:
        """The same of one worker. False: it is not known."""
        if self.mesh.fleet.get(node) is None:
            return False
        self.mesh.send(node, m.Flush())
        return True

    def compare(self) -> None:
        """Compare the index with what workers say that they hold; `comparing` until all have answered."""
        self._audit.begin()

    @property
    def comparing(self) -> bool:
        return self._audit.open

    def compared(self) -> list[Finding]:
        """What `compare` found; who has not answered is not waited for any more."""
        return self._audit.end()

    def drain_worker(self, node: str, *, on: bool) -> bool:
        """Have a worker take no new work, or take it again. False: it is not known."""
        if self.mesh.fleet.get(node) is None:
            return False
        self.mesh.send(node, m.Drain(on))
        return True

    def measured_rtt(self, node: str, seconds: float) -> None:
        """A round trip to a node, as the link measured it."""
        self.mesh.fleet.measured_rtt(node, seconds)

    def picture(self, now: float) -> Picture:
        """What an operator is shown."""
        refused = int(self.snapshot()["requests_refused"])
        return self.observer.look(now, self.ready(), draining=self._draining, refused=refused)

    def snapshot(self) -> dict[str, float]:
        """Counters and gauges for /metrics."""
        phases: dict[str, float] = {f"requests_{phase}": 0.0 for phase in Phase}
        for r in self.requests.values():
            phases[f"requests_{r.phase}"] += 1
        index = self.mesh.index
        gauges: dict[str, float] = {
            "requests_live": len(self.requests),
            "requests_waiting": self._admissions.waiting,
            "requests_refused": self._admissions.refused,
            "index_blocks": index.blocks,
            "index_expected_blocks": index.expected_blocks,
            "index_gaps": index.gaps,
            "workers": len(self.mesh.fleet.all()),
        }
        lines: dict[str, float] = {}
        for line in self.mesh.fleet.lines.all():
            lines[f'line_cap_bytes{{line="{line.name}"}}'] = line.rate
            lines[f'line_rate_bytes{{line="{line.name}"}}'] = self.mesh.fleet.lines.rate(line)
            lines[f'line_outstanding_bytes{{line="{line.name}"}}'] = self.mesh.fleet.outstanding(line)
        return {**self.mesh.counters, **gauges, **phases, **lines}

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
        if not suspect:
            for r in self.requests.values():
                r.heard(node)
        self._watch.look_at_all_on(now, node)
        self._watch.look_at_stuck(now)
        self._gate.serve_waiting(now)

    def on_lost(self, now: float, node: str, reason: str) -> None:
        """A worker's session has ended, for whatever reason."""
        del reason
        if self.mesh.fleet.lost(now, node) is None:
            return
        self.mesh.count("workers_lost_total")
        self.mesh.index.lost(node)
        self._audit.left(node)
        self._meeting.left(node)
        self._rewarm.left(node)
        self._plan_rewarm(now)
        self._inbound.lost(now, node)
        self._watch.look_at_stuck(now)
        self._gate.serve_waiting(now)

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            self.mesh.count("unexpected_messages_total")
            return
        if self._rewarm.knows(message):
            self._rewarm.on_message(now, node, message)
            self._plan_rewarm(now)
        else:
            handler(now, node, message, payload)

    def on_timer(self, now: float) -> None:
        """Whatever is due."""
        for kind, whose in self._timers.due(now):
            if kind == "drain":
                self._watch.end_all(now)
            elif kind == "house":
                self._housekeeping(now)
            elif kind == "rewarm":
                self._rewarm.tick(now)
                self._plan_rewarm(now)
            elif kind == "share":
                if self._sharing.deal(now):
                    self._timers.sooner(("share", None), now + RENEW)
            elif isinstance(whose, Rid):
                self._watch.due(now, whose)

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
            m.Snapshot: self._snapshot,
            m.SnapshotDigest: lambda _, node, msg, __: self._audit.on_digest(node, msg),
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
        self._watch.look_at_stuck(now)
        self._gate.serve_waiting(now)

    def _reported(self, now: float, node: str, report: m.LoadReport) -> None:
        self.mesh.fleet.reported(now, node, report)
        if self._sharing.concerns(report):
            self._timers.sooner(("share", None), self._sharing.due(now))
        self._gate.serve_waiting(now)

    def _snapshot(self, now: float, node: str, snapshot: m.Snapshot, payload: bytes) -> None:
        """All that a worker holds; a main decode that comes back with nothing is re-warmed."""
        self._audit.on_snapshot(node, snapshot, payload)
        self.mesh.index.on_snapshot(node, snapshot, payload)
        worker = self.mesh.fleet.get(node)
        if worker is None or worker.seen:
            return
        worker.seen = True
        if worker.role is Role.MAIN and snapshot.count == 0:
            self._rewarm.cold(now, node)
            self._plan_rewarm(now)

    def _plan_rewarm(self, now: float) -> None:
        at = self._rewarm.next_at()
        if at is not None:
            self._timers.set(("rewarm", None), max(at, now))

    def _kv_events(self, node: str, events: m.KvEvents, payload: bytes) -> None:
        if self.mesh.index.on_events(node, events, payload):
            self.mesh.send(node, m.SnapshotRequest())

    def _housekeeping(self, now: float) -> None:
        """Owners whose engines make no steps are lost (the sessions decide about silent ones)."""
        for worker in self.mesh.fleet.all():
            stalled = worker.drawing and now - worker.progress_at > self.mesh.worker.owner_stall
            if stalled and not worker.suspect:
                worker.breaker.failed(now)
                worker.progress_at = now
                self._inbound.stalled(now, worker.node)
        if self.requests:
            self._timers.set(("house", None), now + HOUSEKEEPING)

    def _ended(self, now: float, r: Request) -> None:
        """Nothing more is to be done for a request."""
        self.observer.ended(now, r)
        self.requests.pop(r.rid, None)
        self._inbound.ended(r.rid)
        self._cuts.ended(r.rid)
        self._watch.forget(r.rid)
