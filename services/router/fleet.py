"""All workers that the router has a session with, by role, pool and datacenter. Knows no requests and no
blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from services.router.breaker import Breaker
from services.router.lines import Line, Lines
from services.router.worker import DEFAULT_PREFILL_RATE, PoolKey, Worker
from shared.policy.config import RouterPolicy
from shared.wire.messages import Announce, LoadReport, Role
from shared.wire.port import PeerInfo


class Fleet:
    """Sessions come and go; a worker belongs to a pool once it has announced itself."""

    def __init__(
        self, policy: RouterPolicy, lines: Lines, datacenter: str, templates: Mapping[str, str] | None = None
    ) -> None:
        """`templates`: of the models that this router tokenizes for, by served name; None: it is not
        asked."""
        self._policy = policy
        self._templates = templates
        self.lines = lines
        self._datacenter = datacenter
        self._workers: dict[str, Worker] = {}
        self._breakers: dict[str, Breaker] = {}  # by name: a process that dies again and again has one
        self._rtts: dict[str, float] = {}
        self._groups: dict[tuple[Role, PoolKey], list[Worker]] = {}  # until who is there changes

    # --- sessions -------------------------------------------------------------------------------------------

    def opened(self, now: float, peer: PeerInfo) -> Worker | None:
        """A session opened; None where the peer is no worker."""
        if peer.role is Role.ROUTER:
            return None
        breaker = self._breakers.get(peer.node)
        if breaker is None:
            policy = self._policy
            breaker = Breaker(policy.breaker_failures, policy.breaker_first, policy.breaker_most)
            self._breakers[peer.node] = breaker
        worker = Worker(peer, joined_at=now, breaker=breaker, progress_at=now)
        self._workers[peer.node] = worker
        self._groups.clear()
        return worker

    def lost(self, now: float, node: str) -> Worker | None:
        """A session ended. A worker that dies with requests has failed."""
        known = self._workers.get(node)
        if known is not None and known.placed:
            known.breaker.failed(now)
        self.lines.forget(node)
        self._groups.clear()
        return self._workers.pop(node, None)

    def announced(self, node: str, announce: Announce) -> bool:
        """What a worker says of itself. Whether it has lost a KV session that it had."""
        worker = self._workers.get(node)
        if worker is None:
            return False
        old, worker.announce = worker.announce, announce
        worker.misfit = self._misfit(worker.peer, announce)
        self._groups.clear()
        return old is not None and bool(set(old.peers) - set(announce.peers))

    def _misfit(self, peer: PeerInfo, announce: Announce) -> str:
        """Why this router's ids mean nothing to a worker; empty where they do."""
        if self._templates is None or not peer.template:
            return ""
        template = self._templates.get(announce.model)
        if template is None:
            return f"serves {announce.model!r}, which this router does not"
        return "" if template == peer.template else f"serves {announce.model!r} with another tokenizer"

    def reported(self, now: float, node: str, report: LoadReport) -> None:
        worker = self._workers.get(node)
        if worker is not None:
            worker.reported(now, report)
            self.lines.measured(node, report.line_rate, report.unsent_bytes, report.line_gain)

    def suspected(self, node: str, suspect: bool) -> None:
        worker = self._workers.get(node)
        if worker is not None:
            worker.suspect = suspect

    def progressed(self, now: float, node: str) -> None:
        """The worker's engine has made a step."""
        worker = self._workers.get(node)
        if worker is not None:
            worker.progress_at = now

    def measured_rtt(self, node: str, seconds: float) -> None:
        """A round trip to a node, as the link measured it."""
        self._rtts[node] = seconds

    # --- who is there ---------------------------------------------------------------------------------------

    def get(self, node: str) -> Worker | None:
        return self._workers.get(node)

    def all(self) -> list[Worker]:
        return list(self._workers.values())

    def pools(self, model: str = "") -> list[PoolKey]:
        """Pools that some worker has announced (for a served name), those with most main decodes first."""
        counts: dict[PoolKey, int] = {}
        for worker in self._workers.values():
            pool = worker.pool
            if pool is not None and worker.serves(model):
                counts[pool] = counts.get(pool, 0) + (worker.role is Role.MAIN)
        return sorted(counts, key=lambda pool: -counts[pool])

    def of(self, role: Role, pool: PoolKey) -> list[Worker]:
        """Workers of a role in a pool, by name."""
        found = self._groups.get((role, pool))
        if found is None:
            members = [one for one in self._workers.values() if one.role is role and one.pool == pool]
            found = self._groups[role, pool] = sorted(members, key=lambda one: one.node)
        return found

    def is_suspect(self, node: str) -> bool:
        """Silent, or not there at all."""
        worker = self._workers.get(node)
        return worker is None or worker.suspect

    def connected(self, one: str, other: str) -> bool:
        """Whether two workers have a live KV session with one another: the first to lose it says so."""
        first, second = self._workers.get(one), self._workers.get(other)
        if first is None or second is None or first.announce is None or second.announce is None:
            return False
        return other in first.announce.peers and one in second.announce.peers

    def max_context(self, model: str = "") -> int:
        """Tokens, prompt and answer together, that some main decode (of a served name) can have in its pool;
        0 while none is known.
        """
        lengths = [
            worker.most_tokens()
            for worker in self._workers.values()
            if worker.role is Role.MAIN and worker.serves(model)
        ]
        return max(lengths, default=0)

    def block_bytes(self, pool: PoolKey) -> int:
        """Bytes of one block in a pool."""
        found = (
            one.announce.bytes_per_block
            for one in self._workers.values()
            if one.announce and one.pool == pool
        )
        return next(found, 0)

    def models(self) -> list[str]:
        """Served names."""
        names = {worker.announce.model for worker in self._workers.values() if worker.announce is not None}
        return sorted(names)

    # --- numbers --------------------------------------------------------------------------------------------

    def line(self, one: Worker, other: Worker) -> Line:
        return self.lines.between(one.peer.datacenter, other.peer.datacenter)

    def outstanding(self, line: Line) -> int:
        """Bytes that wait for a line at all senders."""
        if not line.name:
            return 0
        return sum(worker.unsent(line.name) for worker in self._workers.values())

    def rtt(self, node: str) -> float:
        """Seconds from this router to a worker and back."""
        if node in self._rtts:
            return self._rtts[node]
        worker = self._workers.get(node)
        if worker is None:
            return 0.0
        return self.lines.between(self._datacenter, worker.peer.datacenter).rtt

    def measured(self, role: Role, pool: PoolKey) -> bool:
        """Whether any worker has measured how fast it prefills."""
        return any(one.report is not None and one.report.prefill_rate > 0 for one in self.of(role, pool))

    def typical_rate(self, role: Role, pool: PoolKey) -> float:
        """Prefill rate to assume of a worker that has measured none: its peers' median."""
        rates = [
            worker.report.prefill_rate
            for worker in self.of(role, pool)
            if worker.report is not None and worker.report.prefill_rate > 0
        ]
        return median(rates) if rates else DEFAULT_PREFILL_RATE
