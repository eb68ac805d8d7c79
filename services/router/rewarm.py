"""Brings the cache of a main decode that restarted cold back: the prompts of recent sessions, from prefill
workers that still hold them, in the class of alignments and at no more than a share of the line. Never
by a prefill.

Each is an Admit without sampling, answered by a ticket, and an Attach. One at a time per main decode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.router.mesh import Mesh
from services.router.recent import RecentSessions, Session
from services.router.worker import Worker
from shared.wire.messages import (
    Admit,
    Admitted,
    Attach,
    Have,
    Message,
    Purpose,
    Release,
    Rid,
    Role,
    Sampling,
    TransferClass,
)

PAUSE = 1.0
"""Seconds after a refusal until the next session is tried."""


@dataclass(slots=True)
class Warm:
    """One session on its way."""

    rid: Rid
    session: Session
    sender: str
    upto: int  # blocks that the sender holds
    since: float


@dataclass(slots=True)
class Target:
    """A main decode that is being re-warmed."""

    node: str
    sessions: deque[Session] = field(default_factory=deque)
    now: Warm | None = None
    next_at: float = 0.0


class Rewarm:
    """All main decodes that are being re-warmed. `new_rid` names each transfer as a request here."""

    def __init__(self, mesh: Mesh, recent: RecentSessions, new_rid: Callable[[], Rid]) -> None:
        self._mesh = mesh
        self._recent = recent
        self._new_rid = new_rid
        self._targets: dict[str, Target] = {}
        self._by_rid: dict[Rid, Target] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def knows(self, message: Message) -> bool:
        """Whether a message is about one of these transfers."""
        return getattr(message, "rid", None) in self._by_rid

    def cold(self, now: float, node: str) -> None:
        """A main decode has joined with an empty cache: what it served last is brought back."""
        sessions = self._recent.of(node)
        if sessions and node not in self._targets:
            self._targets[node] = Target(node, deque(sessions), next_at=now)

    def left(self, node: str) -> None:
        """A worker is gone."""
        target = self._targets.pop(node, None)
        if target is not None and target.now is not None:
            self._end(target, target.now)
        for other in list(self._targets.values()):
            if other.now is not None and other.now.sender == node:
                self._end(other, other.now)

    # --- time -----------------------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """When `tick` is wanted."""
        times = [
            target.next_at if target.now is None else target.now.since + self._mesh.policy.rewarm_most
            for target in self._targets.values()
        ]
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Begin what is due, give up what takes too long."""
        for target in list(self._targets.values()):
            if target.now is not None:
                if now >= target.now.since + self._mesh.policy.rewarm_most:
                    self._mesh.count("rewarm_dropped_total")
                    self._end(target, target.now)
            elif now >= target.next_at:
                self._begin(now, target)

    def _begin(self, now: float, target: Target) -> None:
        worker = self._mesh.fleet.get(target.node)
        if worker is None or not target.sessions:
            del self._targets[target.node]
            return
        if worker.suspect or not self._linked(worker):
            target.next_at = now + PAUSE
            return
        session = target.sessions.popleft()
        sender, upto = self._holder(worker, session)
        have = self._mesh.index.match(target.node, session.hashes).have
        if sender is None or upto <= have or worker.pool != session.pool:
            self._mesh.count("rewarm_skipped_total")
            target.next_at = now
            return
        warm = target.now = Warm(self._new_rid(), session, sender.node, upto, now)
        self._by_rid[warm.rid] = target
        tokens = upto * session.pool.block_tokens
        message = Admit(
            rid=warm.rid,
            term=1,
            salt=session.salt,
            priority=0,
            prompt_len=tokens,
            sampling=Sampling(max_pos=tokens + 1, seed=0),
            remaining_ms=int(1000 * self._mesh.policy.rewarm_most),
            purpose=Purpose.WARM,
            parked=True,
        )
        self._mesh.send(target.node, message, session.ids[: 4 * tokens])

    def _linked(self, main: Worker) -> bool:
        """Whether any prefill worker could send to it."""
        pool = main.pool
        prefills = [] if pool is None else self._mesh.fleet.of(Role.PREFILL, pool)
        return any(self._mesh.fleet.connected(one.node, main.node) for one in prefills)

    def _holder(self, main: Worker, session: Session) -> tuple[Worker | None, int]:
        """The prefill worker that holds most of a session and can send it."""
        best: tuple[Worker | None, int] = (None, 0)
        for one in self._mesh.fleet.of(Role.PREFILL, session.pool):
            if one.suspect or not self._mesh.fleet.connected(one.node, main.node):
                continue
            have = self._mesh.index.match(one.node, session.hashes).have
            if have > best[1]:
                best = (one, have)
        return best

    # --- answers --------------------------------------------------------------------------------------------

    def on_message(self, now: float, node: str, message: Message) -> None:
        """A worker's word about one of these transfers."""
        target = self._by_rid[getattr(message, "rid")]  # noqa: B009 - `knows` has said so
        warm = target.now
        if warm is None:
            return
        match message:
            case Admitted() if node == target.node:
                self._admitted(now, target, warm, message)
            case Have() if message.complete:
                self._mesh.count("rewarmed_total")
                self._end(target, warm)
            case Have() if not message.gone:
                pass
            case _:
                self._mesh.count("rewarm_dropped_total")
                self._end(target, warm)
                target.next_at = max(target.next_at, now + PAUSE)

    def _admitted(self, now: float, target: Target, warm: Warm, admitted: Admitted) -> None:
        blocks = admitted.upto - admitted.have - admitted.expected
        if not admitted.ticket or blocks <= 0:
            return  # complete is said next, or another transfer brings the rest
        attach = Attach(
            rid=warm.rid,
            target=target.node,
            incarnation=admitted.incarnation,
            ticket=admitted.ticket,
            have=admitted.have,
            expected=admitted.expected,
            upto=admitted.upto,
            last_hash=admitted.last_hash,
            cls=TransferClass.ALIGNMENT,
        )
        self._mesh.send(warm.sender, attach, b"".join(warm.session.hashes[: admitted.upto]))
        target.next_at = now + self._seconds(target.node, warm.sender, blocks)

    def _seconds(self, main: str, sender: str, blocks: int) -> float:
        """How long so many blocks should take for the transfers to keep to their share of the line."""
        one, other = self._mesh.fleet.get(sender), self._mesh.fleet.get(main)
        if one is None or other is None or other.announce is None:
            return 0.0
        lines = self._mesh.fleet.lines
        rate = lines.kv_rate(self._mesh.fleet.line(one, other)) * self._mesh.policy.rewarm_share
        return blocks * other.announce.bytes_per_block / rate if rate > 0 else 0.0

    def _end(self, target: Target, warm: Warm) -> None:
        for node in (target.node, warm.sender):
            if self._mesh.fleet.get(node) is not None:
                self._mesh.send(node, Release(warm.rid, 1))
        del self._by_rid[warm.rid]
        target.now = None
