"""A whole mesh in one test's loop: the real services on real sockets, and a line between two datacenters.

Router, prefill and relay stand in `a`, main decode in `b`; what crosses goes through a `WanProxy`. Leaving
the mesh checks that nothing is left of it: no request, ticket or pin at any worker, no task, socket or
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.wan.proxy import WanProxy
from services.router.service import RouterService
from shared.runtime.settings import MeshConfig, RoleName
from shared.wire.messages import Flush
from shared.worker.process import WorkerProcess
from tests.support.live_client import Client
from tests.support.live_models import Model
from tests.support.live_shape import Shape, mesh_config, names_of, reserved, without

Service = RouterService | WorkerProcess

READY_WITHIN = 30.0
IDLE_WITHIN = 20.0
CLOSED_WITHIN = 20.0
_LOOP_THREADS = ("asyncio_", "uvloop_", "AnyIO")  # of the loop's own executor


@dataclass
class Running:
    """One service and the task that runs it."""

    service: Service
    task: asyncio.Task[None]


class LiveMesh:
    """The services by node name. `until` waits for a condition, looked at after every event anywhere."""

    def __init__(
        self, model: Model, config: MeshConfig, wan: WanProxy, lan: WanProxy, late: Sequence[str]
    ) -> None:
        self.config = config
        self.wan = wan
        self.lan = lan
        self.client = Client(f"http://{config.node('router-0').http}")
        self.vocab = model.vocab
        self._model = model
        self._late = frozenset(late)
        self._early = without(config, self._late)
        self._running: dict[str, Running] = {}
        self._moved = asyncio.Event()
        self.moves = 0
        """Events so far at any core."""

    # --- services -------------------------------------------------------------------------------------------

    @property
    def router(self) -> RouterService:
        service = self._running["router-0"].service
        assert isinstance(service, RouterService)
        return service

    def __getitem__(self, name: str) -> WorkerProcess:
        service = self._running[name].service
        assert isinstance(service, WorkerProcess)
        return service

    @property
    def workers(self) -> dict[str, WorkerProcess]:
        services = {name: running.service for name, running in self._running.items()}
        return {name: one for name, one in services.items() if isinstance(one, WorkerProcess)}

    async def start(self, name: str) -> None:
        """Bring a node up. Those that were there from the beginning have never heard of a late one."""
        config = self.config if name in self._late else self._early
        node = config.node(name)
        service: Service
        if node.role == "router":
            service = RouterService(config, node)
            self._watch(service.core)
        else:
            service = WorkerProcess(config, node, self._model.load)
        await service.start()
        if isinstance(service, WorkerProcess):
            self._watch(service.worker)
        task = asyncio.create_task(service.run(), name=f"run {name}")
        task.add_done_callback(lambda _: self._moved.set())
        self._running[name] = Running(service, task)

    async def stop(self, name: str, *, drain: bool = False) -> None:
        """Take a node down as its signals would: with `drain` as SIGTERM, else as the second one."""
        running = self._running[name]
        if drain:
            await running.service.drain()
        await self._end(name)

    async def kill(self, name: str) -> None:
        """Take a node down without a word: its sockets close, nobody is told why."""
        service = self._running[name].service
        for stream in list(service._endpoint._inbound.streams):
            stream.abort("killed")
        if isinstance(service, RouterService):
            server = service._web._server
            server.force_exit = True
            for connection in list(server.server_state.connections):
                connection.transport.abort()
        await self._end(name)

    async def _end(self, name: str) -> None:
        running = self._running.pop(name)
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        await running.service.stop()
        self._moved.set()

    async def close(self) -> None:
        """Take all nodes down, workers first."""
        await self.client.close()
        for name in reversed(list(self._running)):
            await self._end(name)

    # --- waiting --------------------------------------------------------------------------------------------

    def _watch(self, core: Any) -> None:
        known = core.after

        def after() -> None:
            known()
            self.moves += 1
            self._moved.set()

        core.after = after

    async def until(
        self, holds: Callable[[], bool], *, within: float = 10.0, what: Callable[[], object] = str
    ) -> None:
        """Wait for a condition; `what` says how things stand where it does not come."""
        try:
            async with asyncio.timeout(within):
                while not holds():
                    self._alive()
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise AssertionError(f"not within {within} s: {what()}") from None

    def _alive(self) -> None:
        """Raise what a service has died of."""
        for running in self._running.values():
            if running.task.done():
                running.task.result()

    def ready(self) -> bool:
        """Whether every node that runs is known to the router, with all its KV sessions."""
        workers = {one["node"]: one for one in self.router.core.ready()["workers"]}
        kinds = {name: self.config.node(name).role for name in self.workers}
        return set(kinds) == set(workers) and all(
            one["usable"] and self._peers(name, kinds) <= set(one["peers"]) for name, one in workers.items()
        )

    def _peers(self, name: str, kinds: Mapping[str, RoleName]) -> set[str]:
        """Those with whom a worker has a KV session: any of another role that runs its model."""
        node = self.config.node
        model = node(name).model
        return {other for other, kind in kinds.items() if kind != kinds[name] and node(other).model == model}

    async def until_ready(self, within: float = READY_WITHIN) -> None:
        await self.until(self.ready, within=within, what=lambda: self.router.core.ready()["workers"])

    # --- what is held ---------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether no request, ticket, transfer, pin or promise is anywhere, and the router's index of every
        cache is that cache."""
        idle = not self.router.core.requests and all(one.worker.idle() for one in self.workers.values())
        return idle and not self.unknown()

    def unknown(self) -> list[str]:
        """Workers of whose blocks the router knows too many or too few."""
        index = self.router.core.mesh.index
        return [
            name
            for name, one in self.workers.items()
            if index.hashes(name) != frozenset(one.worker.site.pool.hashes())
        ]

    def held(self) -> dict[str, object]:
        """What keeps the mesh from being idle."""
        found: dict[str, object] = {
            name: {key: count for key, count in one.worker.counts().items() if count}
            for name, one in self.workers.items()
        }
        phases = [f"{r.rid} {r.phase} {r.trace.reasons}" for r in self.router.core.requests.values()]
        return found | {"requests": phases, "not known by the router": self.unknown()}

    async def settled(self, within: float = IDLE_WITHIN) -> None:
        """Wait until nothing is held, and check all books (I3)."""
        await self.until(self.idle, within=within, what=self.held)
        self.check()

    def check(self) -> None:
        for one in self.workers.values():
            one.worker.check()

    def count(self, name: str, counter: str) -> float:
        """A counter of one worker, or of the router."""
        if name.startswith("router"):
            return self.router.core.snapshot().get(counter, 0.0)
        return self[name].worker.counters.get(counter, 0.0)

    async def flush(self, *names: str) -> None:
        """Empty the caches of some workers, or of all, and wait until the router knows."""
        core, names = self.router.core, names or tuple(self.workers)
        for name in names:
            core.mesh.send(name, Flush())
        self.router._endpoint.perform(time.monotonic())
        await self.until(
            lambda: (
                not any(self[name].worker.site.pool.cached or core.mesh.index.hashes(name) for name in names)
            )
        )

    @property
    def sent(self) -> int:
        """Bytes that have crossed the line so far from `a` to `b`."""
        return self.wan.carried[0]


@contextlib.asynccontextmanager
async def live_mesh(model: Model, shape: Shape | None = None) -> AsyncIterator[LiveMesh]:
    """A mesh that is ready. At the end it has to come to rest by itself, and leaves nothing behind."""
    shape = shape or Shape()
    before = Left.now()
    names = names_of(shape)
    with contextlib.ExitStack() as kept:
        ports = {name: kept.enter_context(reserved()) for name in names}
        ports["router-0.http"] = kept.enter_context(reserved())
        wan, lan = WanProxy(shape.rate_mbit * 1.1, shape.rtt_ms), WanProxy(0.0, 0.0)
        for name in names:
            if name.startswith(("router", "main")):
                flip = name.startswith("router")
                ports[f"{name}.wan"] = await wan.route("127.0.0.1", ports[name], flip=flip)
            if shape.lan and name.startswith(("router", "relay")):
                ports[f"{name}.lan"] = await lan.route("127.0.0.1", ports[name])
        mesh = LiveMesh(model, mesh_config(model, shape, ports), wan, lan, shape.late)
        try:
            for name in names:
                if name not in shape.late:
                    await mesh.start(name)
            await mesh.until_ready()
            yield mesh
            await mesh.settled()
        finally:
            async with asyncio.timeout(CLOSED_WITHIN):
                await mesh.close()
                await wan.close()
                await lan.close()
    await before.same()


@dataclass(frozen=True)
class Left:
    """Tasks, threads and descriptors at one time."""

    tasks: frozenset[asyncio.Task[Any]]
    threads: frozenset[threading.Thread]
    files: frozenset[str]

    @classmethod
    def now(cls) -> Left:
        threads = frozenset(one for one in threading.enumerate() if not one.name.startswith(_LOOP_THREADS))
        return cls(frozenset(asyncio.all_tasks()), threads, frozenset(_files()))

    async def same(self) -> None:
        """Check that nothing has been added, once the loop has closed what was aborted.

        A thread that has done its work is given the time to end: when it does is up to the kernel.
        """
        for _ in range(50):
            now = Left.now()
            if now.files <= self.files and now.tasks <= self.tasks:
                break
            await asyncio.sleep(0)
        for thread in now.threads - self.threads:
            await asyncio.to_thread(thread.join, CLOSED_WITHIN)
        now = Left.now()
        assert not now.tasks - self.tasks, now.tasks - self.tasks
        assert not now.threads - self.threads, now.threads - self.threads
        assert not now.files - self.files, now.files - self.files


def _files() -> Iterator[str]:
    """What every descriptor stands for, sockets by their inode; not what the loop keeps for itself."""
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists
            target = str(file.readlink())
            if not target.startswith(("/dev/null", "anon_inode:")):
                yield f"{file.name} {target}"
