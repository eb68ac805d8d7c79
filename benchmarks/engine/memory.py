"""Case `memory`: what a worker's process holds beyond weights and pool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.command import say
from benchmarks.engine.options import Options
from benchmarks.report import Result, bounded

_MOST = 400e6
_BLOCKS = 640


def memory(options: Options) -> list[Result]:
    """Resident bytes of a process that has prefilled 2,048 tokens and decoded a batch of 16."""
    means = "torch" if options.library is None else "compiled"
    command = [sys.executable, "-m", "benchmarks.engine.memory", str(options.directory), options.dtype, means]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held = json.loads(done.stdout)
    over = held["resident"] - held["weights"] - held["pool"]
    say(f"memory: {held}")
    return [bounded("memory over weights and pool", [over / 1e6], "MB", _MOST / 1e6, most=True, **held)]


def main() -> None:
    """In the process that is measured."""
    import torch

    from benchmarks.engine.bounds import Bounds
    from benchmarks.engine.subjects import EngineSubject
    from shared.engine.loading import compiled

    directory, dtype, means = Path(sys.argv[1]), *sys.argv[2:]
    library = compiled(say) if means == "compiled" else None
    subject = EngineSubject(directory, dtype, 2, blocks=_BLOCKS, library=library)
    subject.prefill(2048)
    subject.start(16, 512)
    for _ in range(8):
        subject.extend(1)
    config = subject.runner.model.config
    weights = Bounds(config, getattr(torch, dtype), 0.0).weight_bytes
    pool = _BLOCKS * subject.runner.layout.block_bytes
    status = Path("/proc/self/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
    print(json.dumps({"resident": resident, "weights": weights, "pool": pool}))


if __name__ == "__main__":
    main()
