"""A mesh of real processes whose every connection goes through a proxy of its own, so that each can be cut,
slowed and healed alone.

Knows how to start, kill, stop and look into nodes. Does not decide what is done to them, and knows no client.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.wan.proxy import WanProxy
from shared.runtime.children import Children
from shared.runtime.mesh_file import load_mesh
from shared.runtime.settings import MeshConfig, NodeConfig, RoleName
from tests.chaos.scene import Scene
from tests.chaos.tripwire import Wire, arm, disarm
from tests.support.small_tokenizer import small_tokenizer

START_WITHIN = 90.0


@dataclass
class Node:
    """One process, as it is wanted: `up` while it is to run, `stopped` while it is held by SIGSTOP."""

    name: str
    role: RoleName
    process: asyncio.subprocess.Process
    up: bool = True
    stopped: bool = False


@dataclass(frozen=True)
class Held:
    """What a process holds: `counts` of its books, and open sockets."""

    counts: Mapping[str, float]
    sockets: int


@dataclass
class Stage:
    """The mesh: nodes by name, a proxy for each pair of nodes that have a session."""

    scene: Scene
    children: Children
    http: Mapping[str, str]
    links: dict[tuple[str, str], WanProxy]
    logs: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)
    restarts: int = 0

    @property
    def urls(self) -> list[str]:
        """Where clients ask: each router."""
        return [f"http://{self.http[name]}" for name in self.scene.routers]

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def line(self) -> list[WanProxy]:
        """The links that join the two datacenters."""
        return [link for ends, link in self.links.items() if self.scene.far(*ends)]

    async def start(self, name: str) -> None:
        """Start a node, or start it again at the same addresses."""
        process = await self.children.start(name)
        self.restarts += name in self.nodes
        self.nodes[name] = Node(name, self.scene.nodes[name][0], process)

    def arm(self, name: str, wire: Wire) -> None:
        """Say when a node is to die by itself, or what it is to send."""
        arm(_tripwire(self.logs, name), wire)

    def disarm(self, name: str) -> bool:
        """Take back what a node is armed with; False: it dies by it."""
        return disarm(_tripwire(self.logs, name))

    async def died(self, name: str, within: float) -> bool:
        """Whether a node that was armed has died by that in this time."""
        node = self.nodes[name]
        node.up = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await node.process.wait()
        if self.disarm(name):
            node.up = True
            return False
        await node.process.wait()
        return True

    async def end(self, name: str, number: signal.Signals) -> int:
        """Send the node a signal that ends it, and wait; its exit code."""
        node = self.nodes[name]
        node.up = False
        node.process.send_signal(number)
        return await node.process.wait()

    def look_for_crashes(self) -> None:
        """Note nodes that have ended though nobody asked them to."""
        for node in self.nodes.values():
            if node.up and node.process.returncode is not None:
                node.up = False
                self.crashes.append(f"{node.name} ended with {node.process.returncode}")

    async def ready(self) -> bool:
        """Whether every router can use every node, and all have their sessions."""
        if not all(node.up and not node.stopped for node in self.nodes.values()):
            return False
        return all([await self._complete(url) for url in self.urls])

    async def _complete(self, url: str) -> bool:
        try:
            told = json.loads(await asyncio.to_thread(_get, f"{url}/ready"))
        except (OSError, ValueError):
            return False
        workers = {one["node"]: one for one in told["workers"]}
        return set(workers) == set(self.scene.nodes) - set(self.scene.routers) and all(
            one["usable"] and self.scene.peers(name) <= set(one["peers"]) for name, one in workers.items()
        )

    async def until_ready(self, within: float) -> float | None:
        """Seconds until `ready`; None where it does not come."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while clock() - began < within:
            self.look_for_crashes()
            if await self.ready():
                return clock() - began
            await asyncio.sleep(0.1)
        return None

    async def held(self, name: str) -> Held:
        """What a process holds now. Raises OSError where it does not answer."""
        text = (await asyncio.to_thread(_get, f"http://{self.http[name]}/metrics")).decode()
        counts: dict[str, float] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                key, _, value = line.rpartition(" ")
                metric = key.partition("{")[0].removeprefix("pdd_")
                counts[metric] = counts.get(metric, 0.0) + float(value)
        return Held(counts, _sockets(self.nodes[name].process.pid))


def leaked(role: RoleName, held: Held, rest: Held) -> dict[str, float]:
    """What of a process that should be at rest is not; `rest`: as it was at rest before."""
    counts = held.counts
    found = {name: count for name, count in counts.items() if name.startswith("held_") and count}
    if role == "router":
        names = ("requests_live", "requests_waiting", "streams_live")
        found |= {name: counts[name] for name in names if counts[name]}
    else:
        away = counts["pool_blocks"] - counts["pool_free"] - counts["pool_cached"]
        if away:
            found["blocks"] = away
    if held.sockets > rest.sockets:
        found["sockets"] = held.sockets - rest.sockets
    if counts["tasks"] > rest.counts["tasks"]:
        found["tasks"] = counts["tasks"] - rest.counts["tasks"]
    return found


@contextlib.asynccontextmanager
async def open_stage(directory: Path, scene: Scene) -> AsyncIterator[Stage]:
    """All nodes and links, ready. Everything is ended on leaving."""
    model = scene.model or small_tokenizer(directory / "model")
    async with contextlib.AsyncExitStack() as stack:
        ports = {name: stack.enter_context(_reserved()) for name in scene.nodes}
        http = {name: f"127.0.0.1:{stack.enter_context(_reserved())}" for name in scene.nodes}
        links: dict[tuple[str, str], WanProxy] = {}
        routes: dict[tuple[str, str], int] = {}
        for source, target in scene.pairs():
            far = scene.far(source, target)
            link = WanProxy(scene.rate_mbit if far else 0.0, scene.rtt_ms if far else 0.0)
            links[source, target] = await stack.enter_async_context(link)
            routes[source, target] = await link.route("127.0.0.1", ports[target])
        config = directory / "mesh.toml"
        config.write_text(scene.mesh_file(model, ports, http, routes), encoding="utf-8")
        mesh: MeshConfig = load_mesh(config)
        logs = directory / "logs"
        children = Children(
            mesh, config, logs, module=lambda node: scene.module(node.role, _tripwire(logs, node.name))
        )
        await stack.enter_async_context(children)
        stage = Stage(scene, children, http, links, logs)
        try:
            for name in scene.nodes:
                await stage.start(name)
            await children.wait_ready(_answers, timeout=START_WITHIN)
            if await stage.until_ready(START_WITHIN) is None:
                raise TimeoutError(f"the mesh is not ready after {START_WITHIN} s; logs in {stage.logs}")
            yield stage
        finally:
            for node in stage.nodes.values():
                if node.stopped and node.process.returncode is None:
                    node.process.send_signal(signal.SIGCONT)


def _tripwire(logs: Path, name: str) -> Path:
    return logs / f"{name}.tripwire"


def _answers(node: NodeConfig) -> bool:
    try:
        _get(f"http://{node.http}/health")
    except OSError:
        return False
    return True


def _get(url: str) -> bytes:
    """Raises OSError where the answer is not whole."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            body: bytes = answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{url}: {error}") from error
    return body


def _sockets(pid: int) -> int:
    """Open sockets of a process that are no listening or internal ones of their own: all that it has."""
    count = 0
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                count += str(file.readlink()).startswith("socket:")
    return count


@contextlib.contextmanager
def _reserved() -> Iterator[int]:
    """A free port that stays ours: a socket is bound to it and never listens."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
