"""Loopback beside other transfer engines, each in an interpreter of its own (`benchmarks/peers`)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Result, paired
from benchmarks.transport.loopback import CHUNK, Setting, ours

LEAST = 3.0
"""Times as fast as each of them."""
_PROGRAMS = Path(__file__).parents[1] / "peers"
_KNOWN = {"mooncake": ("mooncake.engine", "mooncake_tcp.py"), "nixl": ("nixl_cu12", "nixl_ucx.py")}
"""What the interpreter must be able to import, and the program."""
_SECONDS = 4


def peers(
    interpreters: Sequence[Path], pairs: int, megabytes: int, say: Callable[[str], None]
) -> Iterator[Result]:
    """Each peer that one of the interpreters has, and we with the same bytes and chunks, in turn."""
    for name, (module, program) in _KNOWN.items():
        python = next((each for each in interpreters if _has(each, module)), None)
        if python is None:
            say(f"{name}: no interpreter of --peers has it; benchmarks/peers/{program} says what to install")
            continue
        mine: list[float] = []
        theirs: list[float] = []
        version = ""
        for pair in range(pairs):
            mine.append(ours(Setting(megabytes << 20)).rate() * 8e-9)
            found = _run(python, program)
            theirs.append(found["gbit_s"])
            version = found["version"]
            say(f"loopback-peers {pair + 1}/{pairs}: {mine[-1]:.2f}, {name} {theirs[-1]:.2f} Gbit/s")
        facts = {"chunk_kib": CHUNK >> 10, "version": version}
        yield paired(f"loopback / {name}", mine, theirs, "Gbit/s", LEAST, **facts)


def _has(python: Path, module: str) -> bool:
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    return done.returncode == 0


def _run(python: Path, program: str) -> dict[str, Any]:
    """What a peer's program says. Raises ChildProcessError where it fails."""
    command = [str(python), str(_PROGRAMS / program), str(CHUNK >> 10), str(_SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise ChildProcessError(f"{program} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found
