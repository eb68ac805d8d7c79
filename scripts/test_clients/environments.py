"""One virtual environment for each client, so that none changes what the project itself is installed with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.test_clients.cases import Client

BASE = Path("build/clients")


class NotInstalled(Exception):
    """A client's packages cannot be had here; says why."""


def environment(client: Client, *, fresh: bool) -> Path:
    """The client's environment, made where it is not there yet. Raises NotInstalled."""
    where = BASE / client.name
    if fresh or not (where / "installed").exists():
        where.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(where)], where)
        _run([str(where / "bin" / "pip"), "install", "--quiet", "--no-input", *client.packages], where)
        (where / "installed").write_text(" ".join(client.packages), encoding="utf-8")
    return where


def version(client: Client, where: Path) -> str:
    """Version of its first package."""
    name = client.packages[0].partition("[")[0]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    found = subprocess.run(
        [str(where / "bin" / "python"), "-c", code], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def _run(command: list[str], where: Path) -> None:
    settings = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotInstalled(f"{where}: {said[-1] if said else f'exit code {done.returncode}'}")
