"""A mesh for the clients: `python -m services` on deploy/mesh.toml, with ports that are free here."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path("deploy/mesh.toml")
START_WITHIN = 300.0


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The router's base URL while it serves. Raises RuntimeError where the mesh does not start."""
    text = SOURCE.read_text(encoding="utf-8")
    used = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", text)))
    for old, new in zip(used, _free_ports(len(used)), strict=True):
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    config = directory / "mesh.toml"
    config.write_text(text, encoding="utf-8")
    router = re.search(r'role = "router".*?http = "([^"]+)"', text, re.DOTALL)
    assert router is not None
    url = f"http://{router[1]}"
    logs = directory / "logs"
    with (directory / "services.log").open("wb") as out:
        command = [sys.executable, "-m", "services", "--config", str(config), "--logs", str(logs)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        _until_ready(url, process, directory / "services.log")
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30.0)
        process.kill()


def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_WITHIN
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the mesh ended while it started: {log.read_text(errors='replace')[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=2.0):
            return
        time.sleep(0.5)
    raise RuntimeError(f"the mesh is not ready after {START_WITHIN:g} s")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
