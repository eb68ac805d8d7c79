"""Workers with synthetic engines as nodes of a `Sim`, and a router that a test drives by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.simulation.nodes import Node
from benchmarks.simulation.sim import Sim
from shared.engine.engine import Engine
from shared.engine.synthetic import SyntheticRunner, SyntheticTiming, synthetic_layout
from shared.kv.hashing import chain_hashes, chain_root, pack_ids
from shared.kv.pool import BlockPool
from shared.policy.config import LinePolicy, LinkPolicy, WorkerPolicy
from shared.wire import messages as m
from shared.wire.port import Instruction, PeerInfo, Send
from shared.worker.worker import Worker

BLOCK_TOKENS = 4
VOCAB = 1000
LAYOUT = synthetic_layout(BLOCK_TOKENS)
M = TypeVar("M")


def root(salt: bytes) -> bytes:
    return chain_root("synthetic", LAYOUT.digest(), salt)


def hashes_of(ids: Sequence[int], salt: bytes = b"") -> list[bytes]:
    return chain_hashes(root(salt), ids, BLOCK_TOKENS)


@dataclass(eq=False)
class WorkerNode(Node):
    """A worker with what a test looks at."""

    def __init__(self, node: Node, worker: Worker, pool: BlockPool) -> None:
        super().__init__(**{name: getattr(node, name) for name in node.__dataclass_fields__})
        self.worker = worker
        self.pool = pool


def worker_node(
    name: str,
    role: m.Role,
    *,
    blocks: int = 64,
    policy: WorkerPolicy | None = None,
    line: LinePolicy | None = None,
    link: LinkPolicy | None = None,
    timing: SyntheticTiming | None = None,
    seed: int = 0,
    datacenter: str = "a",
    max_context: int = 4096,
    line_rate: float = 0.0,
    line_gain: float = 1.0,
) -> WorkerNode:
    """A worker with its own pool, engine and synthetic runner."""
    rng = random.Random(f"{name}{seed}")
    pool = BlockPool(blocks)
    policy = policy or WorkerPolicy(max_running=16, max_queued=32, token_budget=16, max_chunk_tokens=32)
    timing = timing or SyntheticTiming(step=0.002, token=0.0001)
    runner = SyntheticRunner(LAYOUT, blocks, vocab=VOCAB, timing=timing)
    engine = Engine(pool, block_tokens=BLOCK_TOKENS, policy=policy, max_context=max_context)
    incarnation = rng.getrandbits(64)
    announce = m.Announce(
        role=role,
        model="synthetic",
        block_tokens=BLOCK_TOKENS,
        bytes_per_block=LAYOUT.block_bytes,
        pool_blocks=blocks,
        max_context=max_context,
        max_running=policy.max_running,
        draining=False,
        kv_address="",
        layout=LAYOUT.digest(),
    )
    worker = Worker(
        role,
        name,
        incarnation,
        policy,
        engine,
        pool,
        runner.view,
        root,
        announce,
        rng.randbytes,
        layout=LAYOUT,
        line=line,
        link=link,
        line_rate=lambda _: line_rate,
        line_gain=lambda _: line_gain,
    )
    node = Node(name, role, worker, incarnation, datacenter, engine, runner, timing)
    return WorkerNode(node, worker, pool)


class ScriptedRouter:
    """A `ControlCore` that keeps what it gets and sends what a test says."""

    def __init__(self) -> None:
        self.got: list[tuple[str, m.Message, bytes]] = []
        self.lost: list[tuple[str, str]] = []
        self._outbox: list[Instruction] = []

    def send(self, node: str, message: m.Message, payload: bytes = b"") -> None:
        self._outbox.append(Send(node, message, payload))

    def of(self, kind: type[M], node: str | None = None) -> list[M]:
        """Messages of a kind so far, from one node or all."""
        return [msg for source, msg, _ in self.got if isinstance(msg, kind) and node in (None, source)]

    def on_session(self, now: float, peer: PeerInfo) -> None:
        pass

    def on_resumed(self, now: float, node: str) -> None:
        pass

    def on_suspect(self, now: float, node: str, suspect: bool) -> None:
        pass

    def on_lost(self, now: float, node: str, reason: str) -> None:
        self.lost.append((node, reason))

    def on_message(self, now: float, node: str, message: m.Message, payload: bytes) -> None:
        self.got.append((node, message, payload))

    def on_timer(self, now: float) -> None:
        pass

    def next_deadline(self) -> float | None:
        return None

    def take_outbox(self) -> list[Instruction]:
        taken, self._outbox = self._outbox, []
        return taken


class Bench:
    """A router and workers in one simulator, with short cuts for the messages of the mesh."""

    def __init__(
        self, *nodes: WorkerNode, seed: int = 0, router_incarnation: int = 77, chunk: int = 4096
    ) -> None:
        self.sim = Sim(seed, after=self.check, chunk=chunk)
        self.router = ScriptedRouter()
        self.router_node = self.sim.add(Node("r", m.Role.ROUTER, self.router, router_incarnation))
        self.workers: dict[str, WorkerNode] = {}
        for node in nodes:
            self.join(node)
        self.sim.connect_all()
        self.incarnation = router_incarnation
        self._terms: dict[m.Rid, int] = {}

    def join(self, node: WorkerNode) -> None:
        self.workers[node.name] = node
        self.sim.add(node)

    def __getitem__(self, name: str) -> WorkerNode:
        return self.workers[name]

    def check(self, node: Node) -> None:
        """The books of a worker that something happened to."""
        if isinstance(node, WorkerNode):
            node.worker.check()

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)

    def until(self, kind: type[M], node: str | None = None, *, nth: int = 1, within: float = 20.0) -> M:
        """Run until the router has got the nth message of a kind; fails where it does not come."""
        end = self.sim.now + within
        self.sim.run(end, stop=lambda: len(self.router.of(kind, node)) >= nth)
        found = self.router.of(kind, node)
        assert len(found) >= nth, f"no {kind.__name__} #{nth} from {node or 'anybody'} within {within} s"
        return found[nth - 1]

    def send(self, node: str, message: m.Message, payload: bytes = b"") -> None:
        self.router.send(node, message, payload)
        self.sim.perform(self.router_node)

    # --- messages -------------------------------------------------------------------------------------------

    def rid(self, counter: int = 1) -> m.Rid:
        return m.Rid(self.incarnation, counter)

    def admit(
        self,
        node: str,
        rid: m.Rid,
        ids: Sequence[int],
        sampling: m.Sampling,
        *,
        term: int = 2,
        prompt_len: int | None = None,
        salt: bytes = b"",
        remaining: float = 600.0,
        purpose: m.Purpose = m.Purpose.SERVE,
        parked: bool = False,
        alone: int = 0,
    ) -> None:
        message = m.Admit(
            rid=rid,
            term=term,
            salt=salt,
            priority=0,
            prompt_len=len(ids) if prompt_len is None else prompt_len,
            sampling=sampling,
            remaining_ms=int(1e3 * remaining),
            purpose=purpose,
            parked=parked,
            alone=alone,
        )
        self.send(node, message, pack_ids(ids))

    def prefill(
        self,
        node: str,
        rid: m.Rid,
        ids: Sequence[int],
        sampling: m.Sampling,
        *,
        term: int = 1,
        prompt_len: int | None = None,
        salt: bytes = b"",
        priority: int = 0,
        remaining: float = 600.0,
    ) -> None:
        message = m.Prefill(
            rid=rid,
            term=term,
            salt=salt,
            priority=priority,
            prompt_len=len(ids) if prompt_len is None else prompt_len,
            sampling=sampling,
            remaining_ms=int(1e3 * remaining),
        )
        self.send(node, message, pack_ids(ids))

    def attach(
        self,
        node: str,
        target: str,
        admitted: m.Admitted,
        *,
        cls: m.TransferClass = m.TransferClass.UNCOVERED,
        hashes: Sequence[bytes] = (),
    ) -> None:
        message = m.Attach(
            rid=admitted.rid,
            target=target,
            incarnation=admitted.incarnation,
            ticket=admitted.ticket,
            have=admitted.have,
            expected=admitted.expected,
            upto=admitted.upto,
            last_hash=admitted.last_hash,
            cls=cls,
        )
        self.send(node, message, b"".join(hashes))

    def feed(self, node: str, rid: m.Rid, term: int, start: int, ids: Sequence[int], do: m.Do) -> None:
        self.send(node, m.Feed(rid, term, start, do), pack_ids(ids))

    def release(self, rid: m.Rid, term: int, *nodes: str, align: bool = False) -> None:
        for node in nodes or tuple(self.workers):
            self.send(node, m.Release(rid, term, align))

    # --- what came ------------------------------------------------------------------------------------------

    def rows(self, rid: m.Rid, node: str | None = None, term: int | None = None) -> list[m.TokenRow]:
        return [
            row
            for message in self.router.of(m.TokensOut, node)
            for row in message.rows
            if row.rid == rid and term in (None, row.term)
        ]

    def output(
        self, rid: m.Rid, prompt_len: int, node: str | None = None, term: int | None = None
    ) -> list[int]:
        """The ids of all rows as one run from the first position on; overlaps have to be equal."""
        known: dict[int, int] = {}
        for row in self.rows(rid, node, term):
            for at, id_ in enumerate(row.ids, row.start):
                assert known.setdefault(at, id_) == id_
        first = min(known, default=prompt_len)
        assert sorted(known) == list(range(first, first + len(known)))
        return [known[at] for at in sorted(known)]

    def idle(self) -> bool:
        return all(node.worker.idle() for node in self.workers.values() if node.alive)


def greedy(max_pos: int, **more: object) -> m.Sampling:
    return m.Sampling(**{"max_pos": max_pos, "seed": 0, "temperature": 0.0, **more})  # type: ignore[arg-type]
