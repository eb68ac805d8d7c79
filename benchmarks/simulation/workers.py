"""A worker with its own pool and engine, as a node of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.simulation.nodes import Node, Timing
from shared.engine.api import Runner
from shared.engine.engine import Engine
from shared.kv.pool import BlockPool
from shared.policy.config import LinePolicy, LinkPolicy, WorkerPolicy
from shared.wire import messages as m
from shared.worker.worker import Worker


@dataclass(eq=False)
class WorkerNode(Node):
    """A worker with what is looked at from outside."""

    def __init__(self, node: Node, worker: Worker, pool: BlockPool) -> None:
        super().__init__(**{name: getattr(node, name) for name in node.__dataclass_fields__})
        self.worker = worker
        self.pool = pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a worker has: how much room, how fast, under which policy. `seconds` of its steps are virtual."""

    blocks: int
    timing: Timing
    policy: WorkerPolicy
    max_context: int = 4096
    line: LinePolicy | None = None
    link: LinkPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What is the process's own: its name and place, and what was drawn at its start."""

    name: str
    role: m.Role
    datacenter: str
    incarnation: int
    randbytes: Callable[[int], bytes]


def build_worker(
    birth: Birth,
    machine: Machine,
    runner: Runner,
    root: Callable[[bytes], bytes],
    *,
    fingerprint: str = "",
    kv_address: str = "",
    line_of: Callable[[str], str] = lambda node: node,
    line_rate: Callable[[str], float] = lambda _line: 0.0,
    line_gain: Callable[[str], float] = lambda _line: 1.0,
    line_oldest: Callable[[str], float | None] = lambda _line: None,
) -> WorkerNode:
    """A worker that has joined nothing yet."""
    layout, policy = runner.layout, machine.policy
    pool = BlockPool(machine.blocks)
    engine = Engine(pool, block_tokens=layout.block_tokens, policy=policy, max_context=machine.max_context)
    announce = m.Announce(
        role=birth.role,
        model="synthetic",
        block_tokens=layout.block_tokens,
        bytes_per_block=layout.block_bytes,
        pool_blocks=machine.blocks,
        max_context=machine.max_context,
        max_running=policy.max_running,
        draining=False,
        kv_address=kv_address,
        fingerprint=fingerprint,
        layout=layout.digest(),
    )
    worker = Worker(
        birth.role,
        birth.name,
        birth.incarnation,
        policy,
        engine,
        pool,
        runner.view,
        root,
        announce,
        birth.randbytes,
        layout=layout,
        line=machine.line,
        link=machine.link,
        line_of=line_of,
        line_rate=line_rate,
        line_gain=line_gain,
        line_oldest=line_oldest,
    )
    node = Node(
        birth.name, birth.role, worker, birth.incarnation, birth.datacenter, engine, runner, machine.timing
    )
    return WorkerNode(node, worker, pool)
