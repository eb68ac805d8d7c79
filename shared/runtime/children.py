"""Starts the nodes of a mesh file as child processes and ends them: demo, serve and tests on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shared.errors import StartFailed
from shared.runtime.settings import MeshConfig, NodeConfig

_ONE_OF_MANY = {"OMP_WAIT_POLICY": "passive"}  # services share cores: threads that wait must not spin


class Children:
    """The processes of one mesh, by node name. Use as an async context manager: leaving it ends them all."""

    def __init__(
        self,
        mesh: MeshConfig,
        config: Path,
        logs: Path,
        environment: Mapping[str, str] | None = None,
        module: Callable[[NodeConfig], Sequence[str]] = lambda node: (f"services.{node.role}",),
    ) -> None:
        """`config` is the file that `mesh` was read from; each node's output goes to `logs/NAME.log`.
        `module`: what is run for a node, as after `python -m`.
        """
        self._mesh = mesh
        self._config = config
        self._logs = logs
        self._module = module
        self._environment = {**os.environ, **_ONE_OF_MANY, **(environment or {})}
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Children:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.end()

    async def start(self, name: str) -> asyncio.subprocess.Process:
        """Start one node; its process."""
        node = self._mesh.node(name)
        with (self._logs / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *self._module(node),
                "--config",
                str(self._config),
                "--node",
                name,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        self._running[name] = process
        return process

    async def start_all(self) -> None:
        """Start every node of the mesh."""
        for node in self._mesh.nodes:
            await self.start(node.name)

    async def wait_ready(
        self,
        ask: Callable[[NodeConfig], bool],
        *,
        timeout: float,
        progress: Callable[[list[str]], None] | None = None,
    ) -> None:
        """Until `ask(node)` holds for every node. Raises StartFailed where one has died, or time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        waiting = [node for node in self._mesh.nodes if node.name in self._running]
        while waiting:
            for node in waiting:
                if self._running[node.name].returncode is not None:
                    raise StartFailed(f"{node.name} ended while it started:\n{self.tail(node.name)}")
            asked = await asyncio.gather(*(asyncio.to_thread(ask, node) for node in waiting))
            waiting = [node for node, ready in zip(waiting, asked, strict=True) if not ready]
            if progress is not None:
                progress([node.name for node in waiting])
            if waiting and loop.time() > deadline:
                names = ", ".join(node.name for node in waiting)
                raise StartFailed(f"not ready after {timeout:.0f} s: {names}\n{self.tail(waiting[0].name)}")
            if waiting:
                await asyncio.sleep(0.1)

    def tail(self, name: str, lines: int = 20) -> str:
        """The last lines of a node's output."""
        with contextlib.suppress(OSError):
            text = (self._logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    async def first_to_end(self) -> str:
        """The name of the first node whose process ends."""
        waits = {asyncio.ensure_future(process.wait()): name for name, process in self._running.items()}
        done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in left:
            wait.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return waits[done.pop()]

    async def end(self, *, grace: float = 10.0) -> None:
        """SIGTERM to all, wait, then SIGKILL to what is left."""
        alive = [process for process in self._running.values() if process.returncode is None]
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        waits = [asyncio.ensure_future(process.wait()) for process in alive]
        if waits:
            await asyncio.wait(waits, timeout=grace)
        for process in alive:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        await asyncio.gather(*waits)
        self._running.clear()

    def __getitem__(self, name: str) -> asyncio.subprocess.Process:
        return self._running[name]
