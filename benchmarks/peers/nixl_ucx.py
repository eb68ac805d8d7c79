"""NIXL with UCX over TCP: one agent writes into the registered memory of another, in another process.

usage: PYTHON benchmarks/peers/nixl_ucx.py [CHUNK_KIB [SECONDS]]

Its interpreter needs: pip install nixl-cu12 numpy.
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


def agent_with(name: str, memory: Any) -> Any:
    """An agent that others can write to this memory through."""
    nixl_cu12 = importlib.import_module("nixl_cu12")
    agent = nixl_cu12.nixl_agent(name, nixl_cu12.nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    return agent


def receive(pipe: Connection) -> None:
    """Own the memory that is written to, until told to end."""
    import numpy

    memory = numpy.zeros(POOL, numpy.uint8)
    agent = agent_with("receiver", memory)
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    pipe.recv()
    pipe.send(int(memory.min()))
    os._exit(0)


def main() -> None:
    kib, seconds = (int(word) for word in (*sys.argv[1:3], *("256", "5")[len(sys.argv) - 1 :]))
    os.environ.setdefault("UCX_TLS", "tcp")
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    receiver = context.Process(target=receive, args=(there,))
    receiver.start()
    metadata, base = here.recv()

    import numpy

    memory = numpy.full(POOL, 7, numpy.uint8)
    agent, size = agent_with("sender", memory), kib << 10
    peer = agent.add_remote_agent(metadata)
    starts = range(0, POOL - size + 1, size)
    own, theirs = (
        agent.get_xfer_descs([(first + at, size, 0) for at in starts], "DRAM")
        for first in (memory.ctypes.data, base)
    )
    handle = agent.initialize_xfer("WRITE", own, theirs, peer, b"")

    def write() -> int:
        state = agent.transfer(handle)
        while state != "DONE":
            if state == "ERR":
                sys.exit("a transfer has failed")
            state = agent.check_xfer_state(handle)
        return size * len(starts)

    write()  # warms up
    began, sent = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        sent += write()
    here.send("end")
    if len(starts) * size == POOL and here.recv() != 7:
        sys.exit("what was written did not arrive")
    receiver.kill()
    facts = {"peer": "nixl", "version": importlib.metadata.version("nixl-cu12"), "chunk_kib": kib}
    print(json.dumps(facts | {"gbit_s": round(sent * 8e-9 / took, 3)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
