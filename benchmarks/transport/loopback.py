"""KV transport on loopback beside a bare socket: `python -m benchmarks.transport [--megabytes 2048]
[--pairs 3]`.

Two processes and one bulk connection. `ours` sends 256 KiB chunks of real memory, with checksums on both
sides, into their place in a pool; the baseline sends the same bytes from uvloop into a `BufferedProtocol`,
with no frames, no checksums and no sessions. Runs are interleaved; the last line is JSON: medians in Gbit/s
and their ratio. The machine may be shared, so only the ratio says something.
"""

# ruff: noqa: ARG002 (the faces of a core and of a protocol fix the arguments)
from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, cast

import structlog
import xxhash

from shared.policy.config import LinkPolicy
from shared.transport.endpoint import Endpoint
from shared.transport.security import TlsFiles
from shared.wire.handshake import Identity
from shared.wire.messages import KvChunk, Message, Role
from shared.wire.port import Instruction, OutChunk, PeerInfo, WakeBulk

CHUNK = 256 << 10
POOL = 64 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """What one run moves, and how."""

    total: int
    connections: int = 1
    tls: TlsFiles | None = None


class Core:
    """Sends `total` bytes out of a pool when the peer is there, or receives them into one."""

    def __init__(self, total: int, done: Callable[[], None] | None = None) -> None:
        self.left = total
        self.began = 0.0
        self.wrong = 0
        self._done = done  # of a receiver
        self._pool = memoryview(bytearray(POOL))
        self._at = 0
        self._outbox: list[Instruction] = []

    def on_session(self, now: float, peer: PeerInfo) -> None:
        self._outbox.append(WakeBulk(peer.node))

    def on_resumed(self, now: float, node: str) -> None: ...

    def on_suspect(self, now: float, node: str, suspect: bool) -> None: ...

    def on_lost(self, now: float, node: str, reason: str) -> None: ...

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None: ...

    def on_timer(self, now: float) -> None: ...

    def next_deadline(self) -> float | None:
        return None

    def take_outbox(self) -> list[Instruction]:
        taken, self._outbox = self._outbox, []
        return taken

    def chunk_buffer(self, node: str, chunk: KvChunk) -> memoryview | None:
        return self._pool[chunk.offset : chunk.offset + chunk.length]

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        self.began = self.began or time.perf_counter()
        self.wrong += xxhash.xxh3_64_intdigest(data) != chunk.checksum or not in_place
        self.left -= len(data)
        if self.left <= 0 and self._done is not None:
            self._done()

    def on_chunk_broken(self, node: str, chunk: KvChunk) -> None: ...

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        if self.left <= 0 or self._done is not None:
            return None
        size = min(CHUNK, self.left, limit, POOL - self._at)
        data = self._pool[self._at : self._at + size]
        header = KvChunk(b"t" * 16, 0, 0, 0, self._at, size, 0, xxhash.xxh3_64_intdigest(data))
        self._at = (self._at + size) % POOL
        self.left -= size
        return OutChunk(header, data, 0)

    def chunk_written(self, now: float, node: str, key: int, sent: bool) -> None: ...


async def receive_ours(setting: Setting, pipe: Pipe) -> float:
    """Listen, tell the port, receive; Gbit/s from the first chunk on."""
    over = asyncio.Event()
    core = Core(setting.total, over.set)
    identity = Identity("md", Role.MAIN, "a", 2)
    endpoint = Endpoint(identity, core, LinkPolicy(), tls=setting.tls)
    pipe.send(await endpoint.listen("127.0.0.1", 0))
    await over.wait()
    seconds = time.perf_counter() - core.began
    await endpoint.close()
    if core.wrong:
        raise SystemExit(f"{core.wrong} chunks arrived wrong")
    return (setting.total - CHUNK) * 8 / seconds / 1e9


async def send_ours(setting: Setting, pipe: Pipe) -> float:
    core = Core(setting.total)
    endpoint = Endpoint(Identity("p", Role.PREFILL, "a", 1), core, LinkPolicy(), tls=setting.tls)
    endpoint.dial("md", "127.0.0.1", pipe.recv(), setting.connections)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await endpoint.close()
    return 0.0


class _Sink(asyncio.BufferedProtocol):
    """Receives into a pool, chunk-sized place after place."""

    def __init__(self, total: int, over: asyncio.Event) -> None:
        self.began = 0.0
        self._left = total
        self._over = over
        self._pool = memoryview(bytearray(POOL))
        self._at = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._pool[self._at : (self._at // CHUNK + 1) * CHUNK]

    def buffer_updated(self, nbytes: int) -> None:
        self.began = self.began or time.perf_counter()
        self._at = (self._at + nbytes) % POOL
        self._left -= nbytes
        if self._left <= 0:
            self._over.set()


class _Source(asyncio.Protocol):
    """Sends chunks of a pool while the socket takes them."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._pool = memoryview(bytearray(POOL))
        self._at = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._pump()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def _pump(self) -> None:
        while self._left > 0 and not self._paused:
            size = min(CHUNK, self._left)
            self._transport.write(self._pool[self._at : self._at + size])
            self._at = (self._at + size) % POOL
            self._left -= size


async def receive_bare(setting: Setting, pipe: Pipe) -> float:
    over = asyncio.Event()
    sink = _Sink(setting.total, over)
    server = await asyncio.get_running_loop().create_server(lambda: sink, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await over.wait()
    seconds = time.perf_counter() - sink.began
    server.close()
    return setting.total * 8 / seconds / 1e9


async def send_bare(setting: Setting, pipe: Pipe) -> float:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: _Source(setting.total), "127.0.0.1", pipe.recv())
    await loop.run_in_executor(None, pipe.recv)
    transport.close()
    return 0.0


Side = Callable[[Setting, Pipe], Coroutine[Any, Any, float]]


def _in_process(side: Side, setting: Setting, pipe: Pipe) -> None:
    import uvloop

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    began = time.process_time()
    result = uvloop.run(side(setting, pipe))
    pipe.send((result, time.process_time() - began))


def run(receive: Side, send: Side, setting: Setting) -> tuple[float, float]:
    """One run in two processes: Gbit/s, and CPU seconds of both per GB."""
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    workers = [
        context.Process(target=_in_process, args=(side, setting, theirs))
        for side, (_, theirs) in zip((receive, send), ends, strict=True)
    ]
    for worker in workers:
        worker.start()
    (receiver, _), (sender, _) = ends
    sender.send(receiver.recv())
    rate, cpu = receiver.recv()
    sender.send("done")
    _, more = sender.recv()
    for worker in workers:
        worker.join()
    return rate, (cpu + more) / (setting.total / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--tls", metavar="DIR", help="directory with mesh.pem, mesh.key and mesh-ca.pem")
    options = parser.parse_args()
    tls = None
    if options.tls:
        files = [str(Path(options.tls) / name) for name in ("mesh.pem", "mesh.key", "mesh-ca.pem")]
        tls = TlsFiles(*files)
    setting = Setting(options.megabytes << 20, options.connections, tls)
    ours, bare, cpu, bare_cpu = [], [], [], []
    for pair in range(options.pairs):
        rate, used = run(receive_ours, send_ours, setting)
        ours.append(rate)
        cpu.append(used)
        rate, used = run(receive_bare, send_bare, setting)
        bare.append(rate)
        bare_cpu.append(used)
        print(f"pair {pair + 1}: ours {ours[-1]:6.2f}  bare socket {bare[-1]:6.2f} Gbit/s", file=sys.stderr)
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    print(
        json.dumps(
            {
                "bench": "transport",
                "case": "loopback-tls" if tls else "loopback",
                "value": round(statistics.median(ours), 2),
                "unit": "Gbit/s",
                "baseline": round(statistics.median(bare), 2),
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
                "cpu_seconds_per_gb": round(statistics.median(cpu), 3),
                "baseline_cpu_seconds_per_gb": round(statistics.median(bare_cpu), 3),
                "connections": setting.connections,
                "chunk": CHUNK,
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "commit": _commit(),
            }
        )
    )


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


if __name__ == "__main__":
    main()
