"""Chunks that leave together: one call of the transport for many; each is reported once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

import pytest

from shared.transport.tcp import Stream
from shared.wire.connection import Connection
from shared.wire.handshake import Dialler, Identity
from shared.wire.messages import Role

MIB = 1 << 20


class Nobody:
    """An owner that only has to be told."""

    def on_made(self, stream: Stream) -> None: ...

    def on_bytes(self, stream: Stream) -> None: ...

    def on_chunks(self, stream: Stream) -> None: ...

    def on_turn(self, stream: Stream) -> None: ...

    def on_writable(self, stream: Stream) -> None: ...

    def on_end(self, stream: Stream, reason: str) -> None: ...


class Kernel(asyncio.Transport):
    """Takes everything at once, or keeps it until `drain`, or the last `left` bytes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[bytes]] = []
        self.keeps = False
        self.left: int | None = None
        self.high, self.low = 64 << 10, 16 << 10
        self.kept: list[bytes | memoryview] = []
        self.stream: Stream | None = None

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:  # type: ignore[override]
        held = list(parts)
        self.calls.append([bytes(part) for part in held])
        if self.keeps and self.stream is not None:
            self.kept += held
            if self.left is not None:
                self.kept[:] = [memoryview(held[-1])[-self.left :]] if self.left else []
            if self.get_write_buffer_size() > self.high:
                self.stream.pause_writing()

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.calls.append([bytes(data)])

    def drain(self) -> None:
        assert self.stream is not None
        paused = self.get_write_buffer_size() > self.high
        self.kept.clear()
        if paused:
            self.stream.resume_writing()

    def get_write_buffer_size(self) -> int:
        return sum(len(part) for part in self.kept)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None
        self.high, self.low = high, low

    def abort(self) -> None:
        self.kept.clear()


def connected() -> tuple[Stream, Kernel]:
    dialler = Dialler(Identity("x", Role.MAIN, "b", 1), None, bytes(16))
    stream, kernel = Stream(Connection(dialler, max_chunk=MIB), Nobody(), dialled=True), Kernel()
    kernel.stream = stream
    stream.connection_made(kernel)
    kernel.calls.clear()  # its Hello
    return stream, kernel


async def test_what_is_gathered_leaves_by_one_call_in_order() -> None:
    stream, kernel = connected()
    done: list[tuple[int, bool]] = []
    for at in range(3):
        told = partial(lambda at, sent: done.append((at, sent)), at)
        stream.write_chunk(b"head%d" % at, memoryview(b"data%d" % at), told)
    assert (kernel.calls, done) == ([], [])
    stream.push()
    assert kernel.calls == [[b"head0", b"data0", b"head1", b"data1", b"head2", b"data2"]]
    assert done == [(0, True), (1, True), (2, True)]
    stream.push()
    assert len(kernel.calls) == 1


async def test_a_mebibyte_waits_for_nobody() -> None:
    stream, kernel = connected()
    data = memoryview(bytes(MIB // 4))
    for _ in range(9):
        stream.write_chunk(b"head", data, lambda _: None)
    assert [len(call) for call in kernel.calls] == [8, 8]


async def test_control_bytes_never_pass_a_chunk() -> None:
    stream, kernel = connected()
    stream.write_chunk(b"head", memoryview(b"data"), lambda _: None)
    stream.write(b"words")
    assert kernel.calls == [[b"head", b"data"], [b"words"]]


async def test_chunks_that_the_loop_keeps_are_reported_when_it_has_let_them_go() -> None:
    stream, kernel = connected()
    kernel.keeps = True
    done: list[bool] = []
    memory = bytearray(b"data")
    for _ in range(2):
        stream.write_chunk(b"head", memoryview(memory), done.append)
    stream.push()
    assert (stream.wants_bytes, done) == (False, [])
    kernel.drain()
    assert (stream.wants_bytes, done) == (True, [True, True])
    memory.append(0)  # BufferError where anything still refers to it


@pytest.mark.parametrize("left", [0, 1, 2, 4])
async def test_however_little_the_loop_keeps_is_reported_when_it_has_let_it_go(left: int) -> None:
    stream, kernel = connected()
    kernel.keeps, kernel.left = True, left
    done: list[bool] = []
    stream.write_chunk(b"head", memoryview(bytearray(b"data")), done.append)
    stream.push()
    assert done == ([] if left else [True])
    kernel.drain()
    assert done == [True]


@pytest.mark.parametrize("pushed", [False, True])
async def test_a_connection_that_ends_reports_each_as_not_sent(pushed: bool) -> None:
    stream, kernel = connected()
    kernel.keeps = True
    done: list[bool] = []
    memory = bytearray(b"data")
    for _ in range(3):
        stream.write_chunk(b"head", memoryview(memory), done.append)
    if pushed:
        stream.push()
    stream.abort("a cut")
    stream.connection_lost(None)
    assert done == [False] * 3
    memory.append(0)
    stream.push()
    assert len(kernel.calls) == pushed
