"""Mooncake's TransferEngine over TCP: one process writes into the registered memory of another.

usage: PYTHON benchmarks/peers/mooncake_tcp.py [CHUNK_KIB [SECONDS [BATCH]]]

Its interpreter needs: pip install mooncake-transfer-engine-non-cuda numpy. Its libraries on Debian 12:
libibverbs1 librdmacm1 libnuma1 libcurl4 liburing2 libhiredis0.14.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

POOL = 192 << 20
HOST = "127.0.0.1"


def engine_with(memory: Any) -> Any:
    """An engine that others can write to this memory through."""
    engine = importlib.import_module("mooncake.engine").TransferEngine()
    if engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") != 0:
        sys.exit("Mooncake's engine could not be initialised")
    if engine.register_memory(memory.ctypes.data, memory.nbytes) != 0:
        sys.exit("Mooncake's engine refused the memory")
    return engine


def receive(pipe: Connection) -> None:
    """Own the memory that is written to, until told to end."""
    import numpy

    memory = numpy.zeros(POOL, numpy.uint8)
    engine = engine_with(memory)
    pipe.send((engine.get_rpc_port(), memory.ctypes.data))
    pipe.recv()
    pipe.send(int(memory.min()))
    os._exit(0)


def main() -> None:
    kib, seconds, batch = (int(word) for word in (*sys.argv[1:4], *("256", "5", "64")[len(sys.argv) - 1 :]))
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    receiver = context.Process(target=receive, args=(there,))
    receiver.start()
    port, base = here.recv()

    import numpy

    memory = numpy.full(POOL, 7, numpy.uint8)
    engine, size, peer = engine_with(memory), kib << 10, f"{HOST}:{port}"
    starts = list(range(0, POOL - size + 1, size))
    groups = [starts[at : at + batch] for at in range(0, len(starts), batch)]

    def write(group: list[int]) -> int:
        own, theirs = ([first + at for at in group] for first in (memory.ctypes.data, base))
        if engine.batch_transfer_sync_write(peer, own, theirs, [size] * len(group)) != 0:
            sys.exit("a transfer has failed")
        return size * len(group)

    for group in groups:  # the first round warms up, and proves that all of it arrives
        write(group)
    began, sent = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        sent += write(groups[(sent // size // batch) % len(groups)])
    here.send("end")
    if len(starts) * size == POOL and here.recv() != 7:
        sys.exit("what was written did not arrive")
    receiver.kill()
    version = importlib.metadata.version("mooncake-transfer-engine-non-cuda")
    facts = {"peer": "mooncake", "version": version, "chunk_kib": kib, "batch": batch}
    print(json.dumps(facts | {"gbit_s": round(sent * 8e-9 / took, 3)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
