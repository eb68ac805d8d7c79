"""A mesh of real processes on this machine for the tests of the live page: synthetic engines, a slow line."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from scripts.model_cache import model_dir

KEY = "the-key-of-the-live-page"
ROOT = Path(__file__).resolve().parents[2]
NODES = (
    ("router-0", "router", "a"),
    ("prefill-0", "prefill", "a"),
    ("prefill-1", "prefill", "a"),
    ("relay-0", "relay", "a"),
    ("main-0", "main_decode", "b"),
    ("main-1", "main_decode", "b"),
)
HEAD = """
[model]
path = "{model}"
name = "smollm2-135m-instruct"
engine = "synthetic"
max_context = 65536
[synthetic]
block_bytes = 65536
prefill_tokens_per_second = 1500
step_ms = 12
[http]
admin_key_file = "{key}"
[policy.router]
md_local_tokens = 48
md_local_busy = 1.0
[[datacenters]]
name = "a"
[[datacenters]]
name = "b"
[[lines]]
name = "a-b"
between = ["a", "b"]
rate_mbit = 6.0
rtt_ms = 30.0
"""
NODE = """
[[nodes]]
name = "{name}"
role = "{role}"
datacenter = "{site}"
listen = "127.0.0.1:{port}"
http = "127.0.0.1:{http}"
pool_blocks = 320
"""
READY_WITHIN = 60.0


class LocalMesh:
    """The processes by node name."""

    def __init__(self, folder: Path) -> None:
        (folder / "admin.key").write_text(KEY)
        ports = iter(_free_ports(2 * len(NODES)))
        text = HEAD.format(model=model_dir(), key=folder / "admin.key")
        self.http: dict[str, int] = {}
        for name, role, site in NODES:
            self.http[name] = next(ports)
            text += NODE.format(name=name, role=role, site=site, port=next(ports), http=self.http[name])
        self.file = folder / "mesh.toml"
        self.file.write_text(text)
        self.address = f"http://127.0.0.1:{self.http['router-0']}"
        self._logs = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalMesh:
        for name, _, _ in NODES:
            self.start(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._running):
            self.kill(name)

    def start(self, name: str) -> None:
        """Start a node."""
        role = next(role for node, role, _ in NODES if node == name)
        command = [sys.executable, "-m", f"services.{role}", "--config", str(self.file), "--node", name]
        with (self._logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """End a node without a word."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def wait_ready(self) -> None:
        """Until every pipeline is possible."""
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
                state = self.state()
                if state["ready"] and not state["reasons"]:
                    return
            dead = [name for name, process in self._running.items() if process.poll() is not None]
            if dead:
                log = (self._logs / f"{dead[0]}.log").read_text(errors="replace")
                raise AssertionError(f"{dead[0]} ended:\n{log[-2000:]}")
            time.sleep(0.2)
        raise AssertionError(f"not ready within {READY_WITHIN} s: {self.state()}")

    def state(self) -> dict[str, Any]:
        """What the router says of itself."""
        headers = {"authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(f"{self.address}/admin/state", headers=headers)
        with urllib.request.urlopen(request, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    @contextlib.contextmanager
    def traffic(self, users: int = 10) -> Iterator[None]:
        """Clients that hold conversations, in a process of their own."""
        command = [sys.executable, "-m", "tests.ui.traffic", self.address, str(users)]
        with (self._logs / "traffic.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=dict(os.environ))
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
