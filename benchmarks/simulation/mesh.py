"""A whole mesh in virtual time: one router, workers of a plan, two datacenters and the line between them.

Bytes of KV are scaled: a block has 4 bytes a token here, and rates of lines are in proportion, so that every
transfer takes as long as it would with the plan's real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from benchmarks.simulation.clients import Client
from benchmarks.simulation.nodes import Line, Node
from benchmarks.simulation.sim import Sim
from benchmarks.simulation.timed import STOP, StepCosts, TimedRunner, seed_for, small_layout
from benchmarks.simulation.workers import Birth, Machine, WorkerNode, build_worker
from services.router.core import RouterCore
from services.router.lines import Line as RouterLine
from services.router.requests import GenerationRequest
from shared.errors import ApiError
from shared.kv.hashing import chain_hashes, chain_root
from shared.policy.config import LinePolicy, RouterPolicy, WorkerPolicy
from shared.wire import messages as m

WAN = "wan"
FINGERPRINT = "timed"
VIRTUAL_TOKEN = 4
"""Bytes of KV that a token has in the simulation."""

HAVE_BLOCKS = 32
"""Blocks after which a receiver reports at the earliest: a real block is as large as what a report is due
after.
"""

ROLES = {"p": m.Role.PREFILL, "rld": m.Role.RELAY, "md": m.Role.MAIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """What is simulated, in real units: bytes/s, seconds, tokens/s."""

    prefills: int = 2
    relays: int = 1
    mains: int = 2
    token_bytes: int = 70_272  # KV of one token; a 61-layer model with latent attention in bf16
    block_tokens: int = 128
    chunk_tokens: int = 32  # KV of so many at most goes as one piece, others may pass between two
    wan_rate: float = 10e9 / 8
    wan_rtt: float = 0.04
    lan_rate: float = 8 * 400e9 / 8  # a node of eight chips, each with a link of its own
    lan_rtt: float = 0.0005
    main_in_a: bool = False  # main decodes stand beside the prefills
    prefill: StepCosts = field(default_factory=lambda: StepCosts(0.01, 1 / 15_000, 0.0))
    decode: StepCosts = field(default_factory=StepCosts)
    relay: StepCosts | None = None  # of relays; None: as main decodes
    prefill_blocks: int = 10_000
    relay_blocks: int = 4_000
    main_blocks: int = 10_000
    max_context: int = 1_000_000
    router: RouterPolicy = field(default_factory=RouterPolicy)
    worker: WorkerPolicy = field(default_factory=WorkerPolicy)
    line: LinePolicy = field(default_factory=LinePolicy)
    relay_running: int = 0  # requests that a relay runs at once; 0: as `worker` says
    dealt: bool = True  # senders keep to the shares of the line that the router deals

    @property
    def scale(self) -> float:
        """Virtual bytes for a real one."""
        return VIRTUAL_TOKEN / self.token_bytes

    def names(self) -> list[str]:
        """Workers by name: the role and a number."""
        counts = {"p": self.prefills, "rld": self.relays, "md": self.mains}
        return [f"{role}{at}" for role, count in counts.items() for at in range(1, count + 1)]


def role_of(name: str) -> m.Role:
    """The role that a worker's name says: p1, rld2, md1."""
    return ROLES[name.rstrip("0123456789")]


class VirtualMesh:
    """Runs on `sim.now`. What clients saw is in `clients`, in the order of arrival."""

    def __init__(self, plan: MeshPlan, seed: int = 0, *, settle: float = 1.0) -> None:
        self.plan = plan
        self.random = random.Random(seed)
        self.layout = small_layout(plan.block_tokens)
        self.sim = Sim(seed, chunk=VIRTUAL_TOKEN * plan.chunk_tokens, after=self._after)
        lan = plan.lan_rate * plan.scale
        self.wan = Line(
            plan.wan_rate * plan.scale, plan.wan_rtt / 2, landing=0.0, name=WAN if plan.dealt else ""
        )
        self.lans = {side: Line(lan, plan.lan_rtt / 2, landing=0.0) for side in ("a", "b")}
        self.sim.line_between = self._line_between
        self.workers: dict[str, WorkerNode] = {}
        self.clients: list[Client] = []
        self.ended: Callable[[Client], None] = _nobody
        self._live: dict[m.Rid, Client] = {}
        self.core = self._boot_router()
        for name in plan.names():
            self.boot(name)
        self.sim.run(settle)

    # --- processes ------------------------------------------------------------------------------------------

    def _boot_router(self) -> RouterCore:
        plan = self.plan
        lines = [RouterLine(WAN, ("a", "b"), self.wan.rate, plan.wan_rtt)]
        lines += [RouterLine("", (side, side), line.rate, plan.lan_rtt) for side, line in self.lans.items()]
        incarnation = self.random.getrandbits(63) + 1
        core = RouterCore("r", "a", incarnation, plan.router, worker=plan.worker, line=plan.line, lines=lines)
        self.router = self.sim.add(Node("r", m.Role.ROUTER, core, incarnation, "a"))
        return core

    def boot(self, name: str) -> WorkerNode:
        """A worker starts, with an empty pool, and joins."""
        plan, role = self.plan, role_of(name)
        blocks = {
            m.Role.PREFILL: plan.prefill_blocks,
            m.Role.RELAY: plan.relay_blocks,
            m.Role.MAIN: plan.main_blocks,
        }[role]
        costs = plan.prefill if role is m.Role.PREFILL else plan.decode
        if role is m.Role.RELAY and plan.relay is not None:
            costs = plan.relay
        datacenter = "b" if role is m.Role.MAIN and not plan.main_in_a else "a"
        least = self.layout.block_bytes
        policy = plan.worker
        if role is m.Role.RELAY and plan.relay_running:
            policy = msgspec.structs.replace(policy, max_running=plan.relay_running)
        machine = Machine(
            blocks=blocks,
            timing=costs,
            policy=policy,
            max_context=plan.max_context,
            line=msgspec.structs.replace(
                plan.line, have_bytes=max(HAVE_BLOCKS * least, int(plan.line.have_bytes * plan.scale))
            ),
        )
        incarnation = self.random.getrandbits(63) + 1
        node = build_worker(
            Birth(
                name=name,
                role=role,
                datacenter=datacenter,
                incarnation=incarnation,
                randbytes=self.random.randbytes,
            ),
            machine,
            TimedRunner(self.layout, blocks, costs),
            self.root,
            fingerprint=FINGERPRINT,
            kv_address=f"{name}:7000",
            line_of=lambda other: WAN if self._place(other) != datacenter else f"inside {datacenter}",
            line_oldest=lambda line: self._oldest(name, line),
        )
        node.watched = False
        self.workers[name] = node
        self.sim.add(node)
        self.sim.connect(name, "r")
        return node

    def seed(self, ids: Sequence[int], *names: str) -> int:
        """Workers have the KV of these ids in their caches, as if they had served them long ago. How many of
        them had room for it.
        """
        hashes = chain_hashes(self.root(b""), ids, self.plan.block_tokens)
        seeded = 0
        for name in names:
            pool = self.workers[name].pool
            known = len(pool.match(hashes))
            if pool.free < len(hashes) - known:
                continue
            for at, block in enumerate(pool.take(len(hashes) - known), known):
                pool.publish(block, hashes[at], hashes[at - 1] if at else None)
                pool.unpin([block])
            self.workers[name].worker.on_resumed(self.sim.now, "")  # any event: it tells what it has
            self.sim.perform(self.workers[name])
            seeded += 1
        return seeded

    def held(self, ids: Sequence[int], role: m.Role) -> int:
        """Leading tokens of which the worker of a role that has most holds the KV."""
        hashes = chain_hashes(self.root(b""), ids, self.plan.block_tokens)
        found = 0
        for name, node in self.workers.items():
            if node.alive and role_of(name) is role:
                absent = (at for at, hash_ in enumerate(hashes) if node.pool.find(hash_) is None)
                found = max(found, next(absent, len(hashes)))
        return found * self.plan.block_tokens

    def flush(self) -> None:
        """All workers drop what nobody uses, as an operator asks for."""
        self.sim.call(self.router, self.core.flush)

    def forget(self) -> None:
        """Main decodes drop what nobody uses: a decoder without a cache of past turns."""
        for name in self.workers:
            if role_of(name) is m.Role.MAIN:
                self.core.mesh.send(name, m.Flush())
        self.sim.perform(self.router)

    def kill(self, name: str) -> None:
        """A worker dies with all it has."""
        self.sim.kill(name)

    def root(self, salt: bytes) -> bytes:
        """Of the chains of hashes."""
        return chain_root(FINGERPRINT, self.layout.digest(), salt)

    def _place(self, name: str) -> str:
        return self.sim.nodes[name].datacenter

    def _oldest(self, name: str, line: str) -> float | None:
        """Part of a sender's share of the line that routers deal to its oldest transfers."""
        held = self.wan.shares.get(name) if line == WAN else None
        return None if held is None else held.oldest(self.sim.now)

    def _line_between(self, one: Node, other: Node) -> Line:
        return self.lans[one.datacenter] if one.datacenter == other.datacenter else self.wan

    # --- clients --------------------------------------------------------------------------------------------

    def submit(
        self,
        ids: Sequence[int],
        outputs: int,
        *,
        seed: int | None = None,
        max_tokens: int = 4096,
        tag: str = "",
        tenant: str = "",
        session: bytes = b"",
        priority: int = 0,
        deadline: float = 0.0,
        relay_allowed: bool = True,
    ) -> Client:
        """A client's request whose answer will have `outputs` ids (its `seed` says so); that is told to
        nobody.
        """
        if seed is None:
            seed = seed_for(self.random.getrandbits(32), max(1, min(outputs, max_tokens)))
        sampling = m.Sampling(
            max_pos=len(ids) + max_tokens,
            seed=seed,
            temperature=0.0,
            stop_ids=(STOP,),
        )
        request = GenerationRequest(
            list(ids),
            sampling,
            tenant=tenant,
            session=session,
            priority=priority,
            deadline=deadline,
            relay_allowed=relay_allowed,
        )
        client = Client(self.sim.now, len(ids), tag)
        self.clients.append(client)
        try:
            rid = self.core.submit(self.sim.now, request)
        except ApiError as error:
            client.fail(self.sim.now, error)
            self.core.take_events()
            self.ended(client)
        else:
            client.rid = rid
            self._live[rid] = client
        self.sim.perform(self.router)
        self._deliver()
        return client

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def _after(self, _router: Node) -> None:
        self._deliver()

    def _deliver(self) -> None:
        for rid, event in self.core.take_events():
            client = self._live.get(rid)
            if client is None:
                continue
            client.take(self.sim.now, event)
            if client.outcome:
                del self._live[rid]
                self.ended(client)

    # --- time -----------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.sim.run(self.sim.now + seconds, most=1 << 40)

    def drain(self, within: float = 600.0) -> bool:
        """Until every request has ended. Whether they have."""
        return self.sim.run(self.sim.now + within, stop=lambda: not self._live, most=1 << 40)

    # --- measures -------------------------------------------------------------------------------------------

    @property
    def wan_bytes(self) -> float:
        """Real bytes of KV that have crossed the line towards the main decodes."""
        return self.wan.carried["a"] / self.plan.scale

    @property
    def counters(self) -> dict[str, float]:
        """The router's."""
        return dict(self.core.mesh.counters)

    def sum_of(self, counter: str) -> float:
        """One counter of all workers that are alive."""
        return sum(node.worker.counters.get(counter, 0.0) for node in self.workers.values() if node.alive)


def _nobody(_client: Client) -> None:
    """Nobody waits for ends."""
