"""One transfer between two processes: our endpoint with a real block pool, and a bare socket beside it.

`ours` sends chunks of real memory, with checksums on both sides, into blocks that the receiver's ledger
names; the baseline sends the same bytes from uvloop into a `BufferedProtocol`, with no frames, no
checksums and no sessions. Each process may stand in a network namespace of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, cast

import structlog
import xxhash

from benchmarks.transport.cores import POOL_BLOCKS, ReceivingCore, SendingCore, layout, touched
from benchmarks.wan.namespaces import inside
from shared.policy.config import LinkPolicy
from shared.policy.priority import COVERED, UNCOVERED
from shared.transport.compression import encoding_of
from shared.transport.endpoint import Endpoint
from shared.transport.line import LineSpec
from shared.transport.planes import PlaneCodec
from shared.transport.security import Tls, TlsFiles
from shared.wire.handshake import Identity
from shared.wire.messages import Role
from shared.wire.port import BulkCore

CHUNK = 256 << 10
KEY = b"only for the benchmark, on this machine"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands: a network namespace ("": this one) and the address to listen on."""

    namespace: str = ""
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Setting:
    """What one run moves, and how."""

    total: int
    connections: int = 1
    tls: TlsFiles | None = None
    line: LineSpec | None = None
    sender: Place = Place()
    receiver: Place = Place()
    transfer: int = 64 << 20
    urgent: tuple[float, ...] = ()  # seconds from the start at which a transfer of `urgent_bytes` begins
    urgent_bytes: int = 1 << 20
    sizes: tuple[int, ...] = ()  # of the transfers, instead of `transfer`; their sum is `total`
    at_once: int = 2
    content: Path | None = None  # a file with what is sent, compared at the receiver; None: zeros
    gap: float = 0.0  # seconds from the start of one transfer to that of the next; 0: at once


@dataclass(frozen=True, slots=True)
class Run:
    """What one run measured."""

    progress: tuple[tuple[float, int], ...]  # (seconds, bytes so far)
    cpu: float = 0.0  # seconds of both processes
    took: tuple[float, ...] = ()  # seconds of each urgent transfer
    estimates: tuple[tuple[float, float], ...] = ()  # (monotonic seconds, bytes/s) at the sender
    facts: dict[str, float] = field(default_factory=dict)

    def rate(self, skip: float = 0.0) -> float:
        """Bytes per second after the first `skip` seconds."""
        began = self.progress[0][0] + skip
        (first, before), *_ = [each for each in self.progress if each[0] >= began]
        last, after = self.progress[-1]
        return (after - before) / (last - first)


async def receive_ours(setting: Setting, pipe: Pipe) -> Any:
    over = asyncio.Event()
    core = ReceivingCore(setting.total, over.set, _content(setting))
    endpoint = endpoint_of(Identity("md", Role.MAIN, "b", 2), core, setting)
    pipe.send(await endpoint.listen(setting.receiver.address, 0))
    await over.wait()
    await endpoint.close()
    if core.broken:
        raise SystemExit("a connection stalled and was made anew: this machine is too busy to measure")
    core.check()
    if core.wrong:
        raise SystemExit(f"{core.wrong} chunks arrived wrong")
    return core.progress, core.ended


async def send_ours(setting: Setting, pipe: Pipe) -> Any:
    urgent = len(setting.urgent) * setting.urgent_bytes
    sizes = setting.sizes or _pieces(setting.total - urgent, setting.transfer)
    plan = ((at, UNCOVERED, setting.urgent_bytes) for at in setting.urgent)
    load: Iterator[tuple[int, int]] = ((COVERED if urgent else UNCOVERED, size) for size in sizes)
    if setting.gap:
        plan = ((at * setting.gap, UNCOVERED, size) for at, size in enumerate(sizes))
        load = iter(())
    core = SendingCore(plan, load, setting.at_once, _content(setting))
    endpoint = endpoint_of(Identity("p", Role.PREFILL, "a", 1), core, setting)
    endpoint.dial("md", setting.receiver.address, pipe.recv(), setting.connections)
    estimates: list[tuple[float, float]] = []
    sampling = asyncio.create_task(_sample(endpoint, estimates))
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    sampling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sampling
    counters = dict(endpoint.counters)
    await endpoint.close()
    return core.opened, estimates, counters


def _content(setting: Setting) -> bytes:
    return setting.content.read_bytes() if setting.content is not None else b""


async def _sample(endpoint: Endpoint, into: list[tuple[float, float]]) -> None:
    """The line's estimate, ten times a second."""
    while True:
        into += [(time.monotonic(), line.rate) for line in endpoint.lines().values()]
        await asyncio.sleep(0.1)


def _pieces(total: int, most: int) -> list[int]:
    whole, rest = divmod(total, most)
    return [most] * whole + ([rest] if rest else [])


def endpoint_of(identity: Identity, core: BulkCore, setting: Setting) -> Endpoint:
    lines = [setting.line] if setting.line else []
    encoding = encoding_of(layout())
    return Endpoint(
        identity,
        core,
        LinkPolicy(),
        lines=lines,
        tls=setting.tls,
        key=KEY,
        encoding=encoding,
        codec=PlaneCodec,
    )


POOL = POOL_BLOCKS * layout().block_bytes


class _Sink(asyncio.BufferedProtocol):
    """Receives into a pool, chunk-sized place after place."""

    def __init__(self, total: int, over: asyncio.Event) -> None:
        self.progress: list[tuple[float, int]] = []
        self._total = total
        self._got = 0
        self._over = over
        self._pool = touched(POOL)
        self._at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Receives at once."""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._pool[self._at : (self._at // CHUNK + 1) * CHUNK]

    def buffer_updated(self, nbytes: int) -> None:
        now = time.monotonic()
        self._at = (self._at + nbytes) % POOL
        self._got += nbytes
        if not self.progress or now - self.progress[-1][0] >= 0.02 or self._got >= self._total:
            self.progress.append((now, self._got))
        if self._got >= self._total:
            self._over.set()


class _Source(asyncio.Protocol):
    """Sends chunks of a pool while the socket takes them."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._pool = touched(POOL)
        self._at = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1, low=0)
        congestion = LinkPolicy().lan_congestion.encode()
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion)
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


async def receive_bare(setting: Setting, pipe: Pipe) -> Any:
    over = asyncio.Event()
    sink = _Sink(setting.total, over)
    secure = Tls(setting.tls).server if setting.tls else None
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: sink, setting.receiver.address, 0, ssl=secure)
    pipe.send(server.sockets[0].getsockname()[1])
    await over.wait()
    server.close()
    return sink.progress, {}


async def send_bare(setting: Setting, pipe: Pipe) -> Any:
    loop = asyncio.get_running_loop()
    secure = Tls(setting.tls).client if setting.tls else None
    transport, _ = await loop.create_connection(
        lambda: _Source(setting.total), setting.receiver.address, pipe.recv(), ssl=secure
    )
    await loop.run_in_executor(None, pipe.recv)
    transport.close()
    return {}, [], {}


async def receive_plain(setting: Setting, pipe: Pipe) -> Any:
    """Blocking reads of a whole chunk into the same memory: what the kernel can do here, and nothing else."""
    return _receive_blocking(setting, pipe, checked=False)


async def send_plain(setting: Setting, pipe: Pipe) -> Any:
    return _send_blocking(setting, pipe, checked=False)


def _receive_blocking(setting: Setting, pipe: Pipe, *, checked: bool) -> Any:
    pool, at, got = touched(POOL), 0, 0
    with socket.create_server((setting.receiver.address, 0)) as server:
        pipe.send(server.getsockname()[1])
        made, _ = server.accept()
    progress: list[tuple[float, int]] = []
    with made:
        while got < setting.total:
            end = (at // CHUNK + 1) * CHUNK
            count = made.recv_into(pool[at:end])
            if checked and at + count == end:
                xxhash.xxh3_64_intdigest(pool[end - CHUNK : end])
            at, got = (at + count) % POOL, got + count
            now = time.monotonic()
            if not progress or now - progress[-1][0] >= 0.02 or got >= setting.total:
                progress.append((now, got))
    return progress, {}


def _send_blocking(setting: Setting, pipe: Pipe, *, checked: bool) -> Any:
    pool, at, left = touched(POOL), 0, setting.total
    with socket.create_connection((setting.receiver.address, pipe.recv())) as made:
        congestion = LinkPolicy().lan_congestion.encode()
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion)
        while left > 0:
            chunk = pool[at : at + min(CHUNK, left)]
            if checked:
                xxhash.xxh3_64_intdigest(chunk)
            made.sendall(chunk)
            at, left = (at + CHUNK) % POOL, left - CHUNK
        pipe.recv()
    return {}, [], {}


async def receive_checked(setting: Setting, pipe: Pipe) -> Any:
    """Blocking reads of a whole chunk into the pool, and its checksum: all that has to be done, and no
    protocol."""
    return _receive_blocking(setting, pipe, checked=True)


async def send_checked(setting: Setting, pipe: Pipe) -> Any:
    return _send_blocking(setting, pipe, checked=True)


def checksum_rate() -> float:
    """Bytes per second of the checksum alone, over the same memory."""
    pool, took = touched(POOL), time.thread_time()
    for at in range(0, POOL, CHUNK):
        xxhash.xxh3_64_intdigest(pool[at : at + CHUNK])
    return POOL / (time.thread_time() - took)


Side = Callable[[Setting, Pipe], Coroutine[Any, Any, Any]]


def _in_process(side: Side, setting: Setting, place: Place, pipe: Pipe) -> None:
    import uvloop

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with inside(place.namespace) if place.namespace else contextlib.nullcontext():
        began = time.process_time()
        result = uvloop.run(side(setting, pipe))
        pipe.send((result, time.process_time() - began))


def measure(
    receive: Side,
    send: Side,
    setting: Setting,
    most: float = 120.0,
    through: Callable[[int], int] = lambda port: port,
) -> Run:
    """One run in two processes. `through` turns the receiver's port into the one to dial. Raises TimeoutError
    after `most` seconds, ChildProcessError where a process fails."""
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    sides = zip((receive, send), (setting.receiver, setting.sender), ends, strict=True)
    workers = [
        context.Process(target=_in_process, args=(side, setting, place, theirs), daemon=True)
        for side, place, (_, theirs) in sides
    ]
    for worker in workers:
        worker.start()
    for _, theirs in ends:
        theirs.close()
    (receiver, _), (sender, _) = ends
    try:
        sender.send(through(_answer(receiver, 30.0)))
        (progress, ended), cpu = _answer(receiver, most)
        sender.send("done")
        (opened, estimates, counters), more = _answer(sender, 30.0)
    finally:
        for worker in workers:
            worker.join(2)
            worker.kill()
    took = _urgent(setting, opened, ended)
    return Run(tuple(progress), cpu + more, took, tuple(estimates), counters)


def _urgent(
    setting: Setting, opened: dict[int, tuple[float, int]], ended: dict[int, float]
) -> tuple[float, ...]:
    """How long each took that is not of the load."""
    if not setting.urgent:
        return ()
    mine = [number for number, (_, cls) in opened.items() if cls == UNCOVERED]
    return tuple(ended[number] - opened[number][0] for number in mine if number in ended)


def _answer(pipe: Pipe, most: float) -> Any:
    if not pipe.poll(most):
        raise TimeoutError(f"a benchmark process said nothing for {most:.0f} s")
    try:
        return pipe.recv()
    except EOFError as error:
        raise ChildProcessError("a benchmark process has failed; its error is above") from error


def ours(setting: Setting) -> Run:
    return measure(receive_ours, send_ours, setting)


def bare(setting: Setting) -> Run:
    """A bare uvloop `BufferedProtocol`."""
    return measure(receive_bare, send_bare, setting)


def plain(setting: Setting) -> Run:
    """Blocking sockets."""
    return measure(receive_plain, send_plain, setting)


def checked(setting: Setting) -> Run:
    """Blocking sockets, and a checksum on both sides."""
    return measure(receive_checked, send_checked, setting)
