"""The whole mesh in memory and in virtual time: routers' and workers' cores over a `Sim`, with clients.

Two datacenters: prefills, relays and routers in "a", main decodes in "b", one line between them. Workers meet
through the routers, as in life. After every event the books of the nodes that it touched are checked, and
what clients see (I1).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from benchmarks.simulation.nodes import Line, Node
from benchmarks.simulation.sim import Sim
from services.router.core import RouterCore
from services.router.lines import Line as RouterLine
from services.router.requests import GenerationRequest, Tokens
from shared.engine.engine import Engine
from shared.engine.synthetic import SyntheticRunner, SyntheticTiming, synthetic_run
from shared.kv.pool import BlockPool
from shared.policy.config import LinePolicy, LinkPolicy, RouterPolicy, WorkerPolicy
from shared.wire import messages as m
from shared.wire.handshake import MAX_VERSION
from shared.worker.asked import params_of
from shared.worker.worker import Worker
from tests.support import version_1
from tests.support.mesh import BLOCK_TOKENS, LAYOUT, VOCAB, WorkerNode, hashes_of, root
from tests.support.mesh_client import Client, TermWatch

BLOCK_BYTES = LAYOUT.block_bytes
WAN = "wan"
ROLES = {"p": m.Role.PREFILL, "rld": m.Role.RELAY, "md": m.Role.MAIN}

WORKER = WorkerPolicy(
    max_running=16,
    max_queued=32,
    token_budget=32,
    max_chunk_tokens=32,
    growth_tokens=16,
    local_tokens=8,
)
ROUTER = RouterPolicy(
    md_local_tokens=8,
    md_local_tokens_line_down=64,
    md_local_busy=1.0,
    relay_margin=0.02,
    catch_up_backlog=4,
    singular_min_uncached=32,
    join_ramp=0.0,
)
"""Small numbers, so that small prompts take every road."""


def role_of(name: str) -> m.Role:
    """The role that a node's name says: p1, rld2, md1."""
    return ROLES[name.rstrip("0123456789")]


class WholeMesh:
    """Workers and routers by name, and clients. `wan` and `lan` are bytes/s, 0: no limit."""

    def __init__(
        self,
        *names: str,
        seed: int = 0,
        blocks: int | dict[str, int] = 200,
        wan: float = 20e3,
        lan: float = 0.0,
        delay: float = 0.01,
        jitter: float = 0.0,
        chunk: int = 4096,
        lanes: int = 1,
        worker: WorkerPolicy = WORKER,
        router: RouterPolicy = ROUTER,
        timing: SyntheticTiming | None = None,
        timings: dict[str, SyntheticTiming] | None = None,
        routers: Sequence[str] = ("r",),
        warm: float = 0.5,
        check_every: int = 4,
        old: Collection[str] = (),
    ) -> None:
        """`check_every`: events of a worker between two looks at its books. `old`: who speaks version 1."""
        self._old = frozenset(old)
        self.random = random.Random(seed)
        self._check_every = check_every
        self._since = 0
        self.sim = Sim(seed, chunk=chunk, lanes=lanes, after=self._after)
        self.watch = TermWatch()
        self.sim.spy = self.watch.see
        self.sim.translate = self._translated
        self.lan = Line(lan, 0.0005, jitter)
        self.wan = Line(wan, delay, jitter)
        self.sim.line_between = lambda a, b: self.lan if a.datacenter == b.datacenter else self.wan
        self._blocks = blocks
        self._worker = worker
        self._router = router
        self._timing = timing or SyntheticTiming(step=0.004, token=0.0002)
        self._timings = timings or {}
        self.workers: dict[str, WorkerNode] = {}
        self.routers: dict[str, RouterCore] = {}
        self.clients: dict[m.Rid, Client] = {}
        for name in routers:
            self.boot_router(name)
        for name in names or ("p1", "rld1", "md1"):
            self.boot(name)
        self.join()
        self.run(warm)

    # --- processes ------------------------------------------------------------------------------------------

    def boot_router(self, name: str) -> RouterCore:
        """A router starts."""
        incarnation = self.random.getrandbits(63) + 1
        line = RouterLine(WAN, ("a", "b"), self.wan.rate, 2 * self.wan.delay)
        core = RouterCore(name, "a", incarnation, self._router, worker=self._worker, lines=[line])
        self.routers[name] = core
        self.sim.add(Node(name, m.Role.ROUTER, core, incarnation, "a", version=self._version(name)))
        return core

    def _version(self, name: str) -> int:
        return version_1.VERSION if name in self._old else MAX_VERSION

    def _translated(self, source: Node, target: Node, message: m.Message) -> m.Message:
        """What arrives of a message, as the two speak."""
        if source.version == target.version == MAX_VERSION:
            return message
        return version_1.as_version_1(message)

    def boot(self, name: str) -> WorkerNode:
        """A worker starts, with an empty pool."""
        role = role_of(name)
        datacenter = "b" if role is m.Role.MAIN else "a"
        blocks = self._blocks if isinstance(self._blocks, int) else self._blocks.get(name, 200)
        timing = self._timings.get(name, self._timing)
        pool = BlockPool(blocks)
        runner = SyntheticRunner(LAYOUT, blocks, vocab=VOCAB, timing=timing)
        engine = Engine(pool, block_tokens=BLOCK_TOKENS, policy=self._worker, max_context=4096)
        incarnation = self.random.getrandbits(63) + 1
        announce = m.Announce(
            role=role,
            model="synthetic",
            block_tokens=BLOCK_TOKENS,
            bytes_per_block=BLOCK_BYTES,
            pool_blocks=blocks,
            max_context=4096,
            max_running=self._worker.max_running,
            draining=False,
            kv_address=f"{name}:7000",
            fingerprint="synthetic",
            layout=LAYOUT.digest(),
        )
        worker = Worker(
            role,
            name,
            incarnation,
            self._worker,
            engine,
            pool,
            runner.view,
            root,
            announce,
            self.random.randbytes,
            layout=LAYOUT,
            line=LinePolicy(have_every=0.02),
            link=LinkPolicy(),
            line_of=lambda node: WAN if self._where(node) != datacenter else f"inside {datacenter}",
        )
        process = Node(
            name,
            role,
            worker,
            incarnation,
            datacenter,
            engine,
            runner,
            timing,
            version=self._version(name),
        )
        node = WorkerNode(process, worker, pool)
        self.workers[name] = node
        self.sim.add(node)
        return node

    def _where(self, name: str) -> str:
        return self.sim.nodes[name].datacenter

    def join(self) -> None:
        """Workers without a session to a router get one; they meet one another through it."""
        for router in self.routers:
            for name in self.workers:
                if (
                    self.sim.nodes[name].alive
                    and self.sim.nodes[router].alive
                    and self.sim.link(name, router) is None
                ):
                    self.sim.connect(name, router)

    def meet(self) -> None:
        """All nodes without a session get one."""
        self.sim.connect_all()

    def restart(self, name: str) -> WorkerNode:
        """A worker dies and starts again at once, with nothing."""
        self.sim.kill(name)
        node = self.boot(name)
        self.join()
        return node

    def __getitem__(self, name: str) -> WorkerNode:
        return self.workers[name]

    def counters(self, name: str) -> dict[str, float]:
        return self.workers[name].worker.counters

    @property
    def core(self) -> RouterCore:
        return self.routers["r"]

    # --- clients --------------------------------------------------------------------------------------------

    def submit(
        self,
        ids: Sequence[int],
        max_tokens: int,
        *,
        seed: int = 0,
        temperature: float = 0.0,
        stop_ids: Sequence[int] = (),
        logprobs: int = -1,
        salt: bytes = b"",
        router: str = "r",
        **spec: Any,
    ) -> Client:
        """A client's request. Raises ApiError where it is refused at once."""
        sampling = m.Sampling(
            max_pos=len(ids) + max_tokens,
            seed=seed,
            temperature=temperature,
            stop_ids=tuple(stop_ids),
            logprobs=logprobs,
        )
        spec.setdefault("deadline", 60.0)
        request = GenerationRequest(list(ids), sampling, salt=salt, **spec)
        node, core = self.sim.nodes[router], self.routers[router]
        rid = core.submit(self.sim.now, request)
        expected = synthetic_run(ids, params_of(sampling), VOCAB, len(ids))
        client = Client(rid, list(ids), sampling, salt, router, expected, self.sim.now, spec["deadline"])
        self.clients[rid] = client
        self.sim.perform(node)
        self._deliver(router)
        return client

    def cancel(self, client: Client) -> None:
        """The client has gone."""
        if not client.outcome:
            client.outcome = "cancelled"
            self._tell(client, lambda core: core.cancel(self.sim.now, client.rid))

    def stop_at(self, client: Client, at: int) -> None:
        """A stop string was found."""
        client.stopped = at
        self._tell(client, lambda core: core.stop_at(self.sim.now, client.rid, at))

    def _tell(self, client: Client, act: Any) -> None:
        node = self.sim.nodes[client.router]
        if node.alive:
            self.sim.call(node, lambda: act(self.routers[client.router]))
            self._deliver(client.router)

    def _deliver(self, router: str) -> None:
        for rid, event in self.routers[router].take_events():
            client = self.clients.get(rid)
            if client is None:  # refused before submit returned
                assert not isinstance(event, Tokens)
                continue
            if client.outcome != "cancelled":
                client.take(self.sim.now, event)

    def kill_router(self, name: str = "r") -> None:
        """A router dies; its clients get nothing more."""
        self.sim.kill(name)
        for client in self.clients.values():
            if client.router == name and not client.outcome:
                client.outcome = "orphaned"

    # --- time -----------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)

    def until(self, holds: Any, within: float = 30.0) -> None:
        """Run until something holds; fails where it does not come to."""
        assert self.sim.run(self.sim.now + within, stop=holds), f"did not happen within {within} s"

    def until_ids(self, client: Client, count: int) -> None:
        """Run until the client has so many ids."""
        self.until(lambda: len(client.got) >= count or bool(client.outcome))
        assert len(client.got) >= count, f"{client.outcome}: {client.error}"

    def fate(self, client: Client) -> None:
        """Run until a request has ended; raises the error that its client was told."""
        self.until(lambda: bool(client.outcome))
        if client.error is not None:
            raise client.error

    def finish(self, *clients: Client, within: float = 60.0) -> None:
        """Run until requests have ended, and ended well."""
        mine = clients or tuple(self.clients.values())
        self.until(lambda: all(client.outcome for client in mine), within)
        for client in mine:
            assert client.outcome in ("done", "cancelled"), f"{client.outcome}: {client.error!r}"

    # --- invariants -----------------------------------------------------------------------------------------

    def _after(self, node: Node) -> None:
        if isinstance(node, WorkerNode):
            self._since += 1
            if self._since >= self._check_every:
                self._since = 0
                node.worker.check()
                self._check_prefixes(node)
        elif node.name in self.routers:
            self._deliver(node.name)

    def _check_prefixes(self, node: WorkerNode) -> None:
        """I1: a standby knows a prefix of the log, an owner no other ids than the right ones."""
        for part in node.worker.rooms.decoding.all():
            client = self.clients.get(part.rid)
            if client is None or client.outcome:
                continue
            known, log = part.known.ids, client.log
            if not part.owns:
                assert log[: len(known)] == known, f"{node.name} knows what the log of {part.rid} has not"
            elif len(known) > len(log):
                assert known[: len(log)] == log

    def settle(self, seconds: float = 120.0) -> None:
        """Run until no worker holds anything; I3 and the router's own books."""
        alive = [node for node in self.workers.values() if node.alive]
        end = self.sim.now + seconds
        while self.sim.run(end, stop=lambda: all(node.worker.idle() for node in alive)):
            self.run(1.5)  # late reports and events; a re-warming may begin
            if all(node.worker.idle() for node in alive):
                break
        for node in alive:
            node.worker.check()
            assert node.worker.idle(), (node.name, {k: v for k, v in node.worker.counts().items() if v})
            assert not node.engine or not node.engine.has_work
            sender = node.worker.rooms.kv_out
            assert not len(sender._carriage), f"{node.name} keeps carriers of no transfer"
            assert not sender._awaited, f"{node.name} awaits blocks for no transfer"
            assert not (left := leftovers(node)), f"{node.name} keeps timers of {left}"
        for name, core in self.routers.items():
            if self.sim.nodes[name].alive:
                self._check_router(core)

    def _check_router(self, core: RouterCore) -> None:
        assert not core.requests, {rid: str(r.phase) for rid, r in core.requests.items()}
        assert core.mesh.index.expected_blocks == 0
        assert not any(kind == "request" for kind, _ in core._timers._when)
        for worker in core.mesh.fleet.all():
            assert not worker.placed, (worker.node, worker.placed)
            assert not worker.drawing, (worker.node, worker.drawing)
            node, link = self.workers[worker.node], self.sim.link(core.node, worker.node)
            if node.alive and link is not None and link.up and node.incarnation == worker.peer.incarnation:
                assert core.mesh.index.hashes(worker.node) == set(node.pool.hashes()), worker.node

    # --- measures -------------------------------------------------------------------------------------------

    @property
    def wan_bytes(self) -> int:
        """KV bytes that crossed towards the main decodes."""
        return self.wan.carried["a"]

    def cached(self, name: str, ids: Sequence[int], salt: bytes = b"") -> int:
        """Leading blocks of a chain that a worker has."""
        return len(self[name].pool.match(hashes_of(ids, salt)))

    def dropped(self) -> int:
        """Alignments that were dropped and counted, anywhere."""
        at = [core.mesh.counters["alignments_dropped_total"] for core in self.routers.values()]
        at += [self.counters(name).get("alignments_dropped_total", 0) for name in self.workers]
        return int(sum(at))

    def check_prompts(self, *clients: Client) -> int:
        """I2: prompts of ended requests that no main decode has."""
        mains = [name for name in self.workers if role_of(name) is m.Role.MAIN]
        missing = 0
        for client in clients or self.clients.values():
            if client.outcome == "done" and client.pipeline != "P-RLD":
                blocks = len(client.ids) // BLOCK_TOKENS
                missing += all(self.cached(name, client.ids, client.salt) < blocks for name in mains)
        return missing


def leftovers(node: WorkerNode) -> list[str]:
    """Timers of things that have ended."""
    own = {"load", "orphan_pause", "orphan_end", "orphan_unasked"}
    return [kind for kind, _ in node.worker.site.timers._when if kind not in own]


def policy(**changes: Any) -> RouterPolicy:
    """The router's small numbers with some of them changed."""
    return msgspec.structs.replace(ROUTER, **changes)


def worker_policy(**changes: Any) -> WorkerPolicy:
    """The workers' small numbers with some of them changed."""
    return msgspec.structs.replace(WORKER, **changes)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Some ids."""
    rng = random.Random(f"{seed}")
    return [rng.randrange(VOCAB) for _ in range(length)]
