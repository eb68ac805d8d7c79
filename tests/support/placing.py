"""A fleet made of numbers, for tests of placement: workers that announced and reported what a test says."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from services.router.fleet import Fleet
from services.router.index import Index
from services.router.lines import Line, Lines
from services.router.placement import Placement
from services.router.wish import Wish
from services.router.worker import Placed, PoolKey, Worker
from shared.policy.config import RouterPolicy, WorkerPolicy
from shared.wire.messages import Announce, LoadReport, Role, Snapshot
from shared.wire.port import PeerInfo

BLOCK = 32
BLOCK_BYTES = 1_000_000
ROLES = {"p": Role.PREFILL, "r": Role.RELAY, "m": Role.MAIN}


class Numbers:
    """Workers by name: p* prefill in datacenter a, r* relay in a, m* main decode in b."""

    def __init__(self, *names: str, rate: float = 25e6, now: float = 100.0, **policy: Any) -> None:
        settings = {"max_prefill_wait": 60.0, "md_local_tokens": 256, "md_local_busy": 1.0, **policy}
        self.policy = RouterPolicy(**settings)
        self.worker_policy = WorkerPolicy()
        self.now = now
        self.line = Line("wan", ("a", "b"), rate, 0.04)
        self.fleet = Fleet(self.policy, Lines([self.line]), "a")
        self.index = Index(1 << 20)
        self.placement = Placement(self.policy, self.worker_policy, self.fleet, self.index)
        self._seq = 0
        self._rng = random.Random(1)
        for name in names:
            self.join(name, at=0.0)
        for name in names:
            self.announce(name)

    @property
    def pool(self) -> PoolKey:
        return PoolKey("f", b"l", BLOCK)

    def join(self, name: str, *, at: float) -> None:
        role = ROLES[name[0]]
        self.fleet.opened(at, PeerInfo(name, role, "b" if role is Role.MAIN else "a", 1))
        self.index.opened(name)
        self.index.sized(name, 1 << 20)
        self.index.on_snapshot(name, Snapshot(0, 0), b"")

    def announce(self, name: str, **more: Any) -> None:
        peers = tuple(one.node for one in self.fleet.all() if one.node != name)
        announce = Announce(
            role=ROLES[name[0]],
            model="m",
            block_tokens=BLOCK,
            bytes_per_block=BLOCK_BYTES,
            pool_blocks=100_000,
            max_context=1 << 20,
            max_running=64,
            draining=False,
            kv_address="",
            peers=peers,
            fingerprint="f",
            layout=b"l",
        )
        self.fleet.announced(name, msgspec.structs.replace(announce, **more))
        self.report(name)

    def report(self, name: str, **more: Any) -> None:
        self._seq += 1
        worker = self[name]
        pool_blocks = 0 if worker.announce is None else worker.announce.pool_blocks
        report = LoadReport(
            seq=self._seq,
            running=0,
            queued=0,
            queued_tokens=0,
            free_blocks=pool_blocks,
            promised_blocks=0,
            pinned_blocks=0,
            prefill_rate=10_000.0,
            decode_step_ms=25.0,
        )
        self.fleet.reported(self.now, name, msgspec.structs.replace(report, **more))

    def __getitem__(self, name: str) -> Worker:
        worker = self.fleet.get(name)
        assert worker is not None
        return worker

    def chain(self, blocks: int) -> list[bytes]:
        """Hashes of a prompt nobody has."""
        return [self._rng.randbytes(16) for _ in range(blocks)]

    def hold(self, name: str, hashes: list[bytes]) -> None:
        """A worker has these blocks cached."""
        known = sorted(self.index.hashes(name) | set(hashes))
        self.index.on_snapshot(name, Snapshot(0, len(known)), b"".join(known))

    def wish(self, hashes: list[bytes], *, tail: int = 10, **more: Any) -> Wish:
        settings: dict[str, Any] = {"output": 200, "growth": 256, "deadline": 600.0}
        return Wish(tokens=len(hashes) * BLOCK + tail, hashes=hashes, **(settings | more))

    def place(self, name: str, *, tokens: int = 0, blocks: int = 0) -> None:
        """This router gave a worker a request just now."""
        worker = self[name]
        worker.take(object(), Placed(self.now, tokens=tokens, blocks=blocks))
