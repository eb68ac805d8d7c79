"""What a case runs on: the router as its own process on a core of its own, the bare server beside it, and
this process (workers and clients) on the other cores."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.router.client import Client
from benchmarks.router.workers import BLOCK, CONTEXT, Fleet
from shared.engine.fingerprint import template_fingerprint

START_WITHIN = 60.0


@dataclass
class Rig:
    """A router with instant workers, a bare server, and clients of both."""

    fleet: Fleet
    client: Client
    bare: Client
    router: asyncio.subprocess.Process
    url: str

    def cpu(self) -> float:
        """CPU seconds that the router has used, in all its threads."""
        fields = Path(f"/proc/{self.router.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes of the router that are in memory."""
        return int(Path(f"/proc/{self.router.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def rig(model: Path, directory: Path, text: Sequence[int], core: int | None) -> AsyncIterator[Rig]:
    """All of it. `core`: the router's and the bare server's; this process keeps off it."""
    ports = _free_ports(8)
    config = _written(directory / "mesh.toml", _mesh_file(model, ports))
    cores = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, cores - {core} or cores)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        command = [sys.executable, "-m", "services.router", "--config", str(config), "--node", "router-0"]
        router = await _started(stack, _pinned(command, core), directory / "router.log")
        server = await _started(stack, _pinned([sys.executable, "-m", "benchmarks.router.bare"], core), None)
        assert server.stdout is not None
        bare_port = int(await server.stdout.readline())
        fleet = Fleet(text)
        await _reachable(ports[0], router, directory / "router.log")
        await fleet.join(template_fingerprint(str(model)), "127.0.0.1", ports[0])
        stack.push_async_callback(fleet.close)
        url = f"http://127.0.0.1:{ports[1]}"
        await _ready(url)
        client = Client("127.0.0.1", ports[1], fleet.saw)
        bare = Client("127.0.0.1", bare_port)
        stack.callback(client.close)
        stack.callback(bare.close)
        yield Rig(fleet, client, bare, router, url)


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _pinned(command: list[str], core: int | None) -> list[str]:
    taskset = shutil.which("taskset")
    return command if core is None or taskset is None else [taskset, "-c", str(core), *command]


async def _started(
    stack: contextlib.AsyncExitStack, command: list[str], log: Path | None
) -> asyncio.subprocess.Process:
    """A child process that is ended with the stack."""
    out = asyncio.subprocess.PIPE if log is None else stack.enter_context(log.open("wb"))
    process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5.0)
                return
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    return process


async def _reachable(port: int, router: asyncio.subprocess.Process, log: Path) -> None:
    for _ in range(int(START_WITHIN / 0.1)):
        if router.returncode is not None:
            raise RuntimeError(f"the router ended while it started: {_tail(log)}")
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the router does not listen after {START_WITHIN:g} s; see {log}")


async def _ready(url: str) -> None:
    said = ""
    for _ in range(int(START_WITHIN / 0.1)):
        try:
            state = json.loads(await asyncio.to_thread(_get, f"{url}/ready"))
            if len([one for one in state["workers"] if one["usable"]]) == 2:
                return
            said = json.dumps(state)
        except urllib.error.HTTPError as error:
            said = error.read().decode()
        except OSError as error:
            said = str(error)
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the router is not ready: {said}")


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        return bytes(answer.read())


def _free_ports(count: int) -> list[int]:
    keepers = [socket.socket() for _ in range(count)]
    for keeper in keepers:
        keeper.bind(("127.0.0.1", 0))
    ports = [keeper.getsockname()[1] for keeper in keepers]
    for keeper in keepers:
        keeper.close()
    return ports


def _mesh_file(model: Path, ports: Sequence[int]) -> str:
    """mesh.toml of one router and the two workers that this process plays."""
    text = [
        "[model]",
        f"path = {json.dumps(str(model))}",
        'name = "bench"',
        'engine = "synthetic"',
        f"block_tokens = {BLOCK}",
        f"max_context = {CONTEXT}",
        "[[datacenters]]",
        'name = "a"',
        "[[datacenters]]",
        'name = "b"',
        "[[lines]]",
        'name = "a-b"',
        'between = ["a", "b"]',
        "rtt_ms = 0.0",
    ]
    nodes = [("router-0", "router", "a"), ("prefill-0", "prefill", "a"), ("main-0", "main_decode", "b")]
    for at, (name, role, datacenter) in enumerate(nodes):
        text += [
            "[[nodes]]",
            f'name = "{name}"',
            f'role = "{role}"',
            f'datacenter = "{datacenter}"',
            f'listen = "127.0.0.1:{ports[2 * at]}"',
            f'http = "127.0.0.1:{ports[2 * at + 1]}"',
        ]
    return "\n".join(text) + "\n"
