"""A router core among fake workers, in virtual time: messages are late, sessions fall silent, workers die.

Every channel keeps its order; nothing else is ordered. After each event the clients' view is checked (I1).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from services.router.core import RouterCore
from services.router.lines import Line
from services.router.requests import Broken, Done, GenerationRequest, Tokens
from shared.errors import MeshError
from shared.policy.config import RouterPolicy, WorkerPolicy
from shared.wire import messages as m
from shared.wire.messages import Role
from shared.wire.port import PeerInfo, Send
from tests.support.fake_parts import answer
from tests.support.fake_workers import FakeWorker

M = TypeVar("M")


@dataclass(eq=False)
class Client:
    """What one client sees, and what it should."""

    prompt: list[int]
    sampling: m.Sampling
    due: list[int]
    ids: list[int] = field(default_factory=list)
    owners: list[Role] = field(default_factory=list)
    done: Done | None = None
    broken: MeshError | None = None
    cancelled: bool = False
    stopped_at: int | None = None
    ended_at: float = 0.0

    @property
    def over(self) -> bool:
        return self.done is not None or self.broken is not None or self.cancelled


@dataclass(eq=False)
class Session:
    """Router and one incarnation of a worker."""

    worker: FakeWorker
    open: bool = True
    silent: bool = False
    suspected: bool = False
    arrives: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})
    queues: dict[str, deque[tuple[m.Message, bytes]]] = field(
        default_factory=lambda: {"up": deque(), "down": deque()}
    )


class FakeMesh:
    """The event loop, the sessions, and the clients."""

    def __init__(
        self,
        seed: int,
        roles: dict[str, Role],
        policy: RouterPolicy | None = None,
        *,
        latency: float = 0.01,
        **worker: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.latency = latency
        self.core = RouterCore(
            "router",
            "a",
            77,
            policy or RouterPolicy(),
            worker=WorkerPolicy(),
            lines=[Line("wan", ("a", "b"), 1e5, 0.02)],
        )
        self.clients: dict[m.Rid, Client] = {}
        self.workers: dict[str, FakeWorker] = {}
        self.sessions: dict[str, Session] = {}
        self.unlinked: set[frozenset[str]] = set()
        self.faults: list[str] = []
        self.sent: list[tuple[float, str, m.Message]] = []
        self._settings = worker
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._links: dict[tuple[str, str], float] = {}
        self._incarnation = 1000
        for name, role in roles.items():
            self.start(name, role)

    # --- time -----------------------------------------------------------------------------------------------

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), act))

    def run(self, until: float, stop: Callable[[], bool] = lambda: False, most: int = 300_000) -> bool:
        """Go on until a time, or until `stop()`: whether it was that."""
        for _ in range(most):
            if stop():
                return True
            deadline = self.core.next_deadline()
            due = self._heap[0][0] if self._heap else float("inf")
            if min(due, deadline if deadline is not None else float("inf")) > until:
                self.now = until
                return False
            if deadline is not None and deadline <= due:
                self.now = max(self.now, deadline)
                self.core.on_timer(self.now)
            else:
                self.now, _, act = heapq.heappop(self._heap)
                act()
            self.perform()
        raise RuntimeError(f"{most} events and no end")

    def settle(self, seconds: float = 400.0) -> bool:
        """Run until every request is over."""
        return self.run(self.now + seconds, stop=lambda: not self.core.requests)

    # --- the router -----------------------------------------------------------------------------------------

    def submit(self, ids: Sequence[int], max_tokens: int, stops: Sequence[int] = (), **more: Any) -> m.Rid:
        """A client sends a request. Raises what the core raises."""
        sampling = m.Sampling(max_pos=len(ids) + max_tokens, seed=1, stop_ids=tuple(stops))
        request = GenerationRequest(ids=list(ids), sampling=sampling, **more)
        rid = self.core.submit(self.now, request)
        self.clients[rid] = Client(list(ids), sampling, answer(ids, sampling))
        self.perform()
        return rid

    def cancel(self, rid: m.Rid) -> None:
        client = self.clients[rid]
        if not client.over:
            client.cancelled = True
        self.core.cancel(self.now, rid)
        self.perform()

    def stop_at(self, rid: m.Rid, at: int) -> None:
        client = self.clients[rid]
        if not client.over:
            client.stopped_at = at
            self.core.stop_at(self.now, rid, at)
            self.perform()

    def said(self, kind: type[M], node: str | None = None) -> list[M]:
        """Messages of a kind that the router has sent, to one node or all, in order."""
        return [message for _, to, message in self.sent if isinstance(message, kind) and node in (None, to)]

    def perform(self) -> None:
        """Send what the router wants sent, tell the clients."""
        for instruction in self.core.take_outbox():
            assert isinstance(instruction, Send)
            session = self.sessions.get(instruction.node)
            self.sent.append((self.now, instruction.node, instruction.message))
            if session is not None and session.open:
                self._carry(session, "down", instruction.message, instruction.payload)
        for rid, event in self.core.take_events():
            self._tell(rid, event)

    def _tell(self, rid: m.Rid, event: Tokens | Done | Broken) -> None:
        client = self.clients.get(rid)
        if client is None or client.over:
            self.faults.append(f"{type(event).__name__} for {rid}, which is over or unknown")
            return
        match event:
            case Tokens():
                if event.start != len(client.prompt) + len(client.ids):
                    self.faults.append(f"{rid}: ids at {event.start}, {len(client.ids)} were shown")
                client.ids.extend(event.ids)
                client.owners.extend([event.owner] * len(event.ids))
                if client.ids != client.due[: len(client.ids)]:
                    self.faults.append(f"{rid}: wrong id within {len(client.ids)}")
            case Done():
                client.done, client.ended_at = event, self.now
                shown = len(client.prompt) + len(client.ids)
                if client.stopped_at is None and event.at != len(client.prompt) + len(client.due):
                    self.faults.append(
                        f"{rid}: done at {event.at}, due {len(client.prompt) + len(client.due)}"
                    )
                if client.stopped_at not in (None, event.at) or event.at > shown:
                    self.faults.append(f"{rid}: done at {event.at}, {shown} shown")
            case Broken():
                client.broken, client.ended_at = event.error, self.now

    # --- channels -------------------------------------------------------------------------------------------

    def to_router(self, worker: FakeWorker, message: m.Message, payload: bytes = b"") -> None:
        session = self.sessions.get(worker.name)
        if session is not None and session.worker is worker and session.open:
            self._carry(session, "up", message, payload)

    def _carry(self, session: Session, way: str, message: m.Message, payload: bytes) -> None:
        session.queues[way].append((message, payload))
        if not session.silent:
            self._fly(session, way)

    def _fly(self, session: Session, way: str) -> None:
        when = max(session.arrives[way], self.now + self.latency * self.rng.random())
        session.arrives[way] = when
        self.at(when, lambda: self._arrive(session, way))

    def _arrive(self, session: Session, way: str) -> None:
        if not session.open or session.silent or not session.queues[way]:
            return
        message, payload = session.queues[way].popleft()
        if way == "up":
            self.core.on_message(self.now, session.worker.name, message, payload)
        elif session.worker.alive:
            session.worker.on_message(message, payload)

    def to_worker(self, worker: FakeWorker, target: str, message: m.Message) -> None:
        if not self.linked(worker.name, target):
            return
        other = self.workers[target]
        when = max(self._links.get((worker.name, target), 0.0), self.now + 0.002 * self.rng.random())
        self._links[worker.name, target] = when
        self.at(when, lambda: other.on_message(message, b"") if other.alive else None)

    # --- workers --------------------------------------------------------------------------------------------

    def start(self, name: str, role: Role) -> FakeWorker:
        """A process starts, and its sessions open."""
        self._incarnation += 1
        datacenter = "b" if role is Role.MAIN else "a"
        worker = FakeWorker(self, name, role, datacenter, self._incarnation, **self._settings)
        self.workers[name] = worker
        self.unlinked = {pair for pair in self.unlinked if name not in pair}
        self.sessions[name] = Session(worker)
        self.core.on_session(self.now, PeerInfo(name, role, datacenter, worker.incarnation))
        worker.greet()
        self._reannounce()
        self.perform()
        self._tick(worker)
        return worker

    def _tick(self, worker: FakeWorker) -> None:
        if worker.alive and self.workers.get(worker.name) is worker:
            worker.report()
            self.at(self.now + 1.0, lambda: self._tick(worker))

    def peer(self, name: str) -> FakeWorker:
        return self.workers[name]

    def linked(self, one: str, other: str) -> bool:
        pair = frozenset((one, other))
        return pair not in self.unlinked and self.workers[one].alive and self.workers[other].alive

    def peers(self, worker: FakeWorker) -> tuple[str, ...]:
        names = (name for name, one in self.workers.items() if one.model == worker.model)
        return tuple(sorted(name for name in names if name != worker.name and self.linked(worker.name, name)))

    def _reannounce(self) -> None:
        for worker in self.workers.values():
            if worker.alive:
                worker.announce()

    # --- faults ---------------------------------------------------------------------------------------------

    def kill(self, name: str, *, noticed: bool = True) -> None:
        """A process dies. Noticed: its session ends at once (a new incarnation); else it is only silent."""
        worker = self.workers[name]
        if not worker.alive:
            return
        worker.alive = False
        session = self.sessions[name]
        if noticed:
            self._lose(session)
        else:
            self._silence(session, 30.0)
        self._reannounce()
        self.perform()

    def silence(self, name: str, seconds: float) -> None:
        """Nothing passes between router and worker for a while."""
        session = self.sessions[name]
        if session.open and not session.silent:
            self._silence(session, seconds)

    def _silence(self, session: Session, seconds: float) -> None:
        session.silent = True
        self.at(self.now + 2.0, lambda: self._suspect(session))
        self.at(self.now + min(seconds, 30.0), lambda: self._heal(session, seconds))

    def _suspect(self, session: Session) -> None:
        if session.open and session.silent and not session.suspected:
            session.suspected = True
            self.core.on_suspect(self.now, session.worker.name, True)

    def _heal(self, session: Session, seconds: float) -> None:
        if not session.open or not session.silent:
            return
        if seconds >= 30.0 or not session.worker.alive:
            self._lose(session)
            return
        session.silent = False
        if session.suspected:
            session.suspected = False
            self.core.on_suspect(self.now, session.worker.name, False)
        for way, queue in session.queues.items():
            for _ in range(len(queue)):
                self._fly(session, way)

    def _lose(self, session: Session) -> None:
        session.open = False
        self.core.on_lost(self.now, session.worker.name, "lost")
        if session.worker.alive:
            # It goes on, and comes back as another incarnation would.
            session.worker.alive = False

    def restart(self, name: str) -> None:
        """A dead process starts again."""
        worker = self.workers[name]
        if not worker.alive:
            session = self.sessions[name]
            if session.open:
                self._lose(session)
            self.start(name, worker.role)

    def unlink(self, one: str, other: str, seconds: float) -> None:
        """Two workers lose their KV session for a while."""
        pair = frozenset((one, other))
        if one == other or pair in self.unlinked:
            return
        self.unlinked.add(pair)
        self._drop_transfers(one, other)
        self._reannounce()

        def relink() -> None:
            self.unlinked.discard(pair)
            self._reannounce()

        self.at(self.now + seconds, relink)

    def _drop_transfers(self, one: str, other: str) -> None:
        for sender, target in ((one, other), (other, one)):
            attached = self.workers[sender].attached
            for ticket in [ticket for ticket, attach in attached.items() if attach.target == target]:
                del attached[ticket]

    # --- what has to hold -----------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Everything that is wrong now that all requests are over."""
        found = list(self.faults)
        for rid, r in self.core.requests.items():
            found.append(f"{rid} is stuck in {r.phase}: {r.trace.reasons}")
        for rid, client in self.clients.items():
            if not client.over:
                found.append(f"{rid} has no end")
        for worker in self.workers.values():
            found += worker.faults
            if worker.alive and (worker.parts or worker.prompts):
                left = [*worker.parts, *worker.prompts]
                found.append(f"{worker.name} was not told that these are over: {left}")
        for known in self.core.mesh.fleet.all():
            if known.placed or known.drawing:
                found.append(f"the books of {known.node} are not empty")
            if self.core.mesh.index.hashes(known.node) != frozenset(self.workers[known.node].cache):
                found.append(f"the index of {known.node} differs from its cache")
        if self.core.mesh.index.expected_blocks:
            found.append("blocks are expected of no placement")
        return found


def roles(prefill: int = 1, relay: int = 1, main: int = 1) -> dict[str, Role]:
    """Names and roles of so many workers."""
    kinds = ((Role.PREFILL, "p", prefill), (Role.RELAY, "r", relay), (Role.MAIN, "m", main))
    return {f"{letter}{at}": role for role, letter, count in kinds for at in range(count)}
