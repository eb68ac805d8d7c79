"""Reads past the event loop's own: turns, holds, and every way to end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.transport.direct import DirectReads


class Places:
    """Takes bytes into two places at a time, and keeps what was told."""

    def __init__(self, first: int = 1000, second: int = 100) -> None:
        self.got = bytearray()
        self.turns = 0
        self.ends: list[str] = []
        self.happened = asyncio.Event()
        self.reads: DirectReads | None = None
        self.fails = False
        self.stops = False
        self._places = (memoryview(bytearray(first)), memoryview(bytearray(second)))

    def buffers(self) -> tuple[memoryview, ...]:
        return self._places

    def updated(self, count: int) -> bool:
        first, second = self._places
        self.got += bytes(first[:count]) + bytes(second[: max(0, count - len(first))])
        return True

    def on_bytes(self) -> None:
        if self.fails:
            raise ArithmeticError
        if self.stops:
            assert self.reads is not None
            self.reads.stop()
        self.happened.set()

    def on_turn(self) -> None:
        self.turns += 1
        self.happened.set()

    def on_end(self, reason: str) -> None:
        self.ends.append(reason)
        self.happened.set()

    async def until(self, size: int) -> None:
        while len(self.got) < size:
            await self.next()

    async def next(self) -> None:
        self.happened.clear()
        await asyncio.wait_for(self.happened.wait(), 10)


def _descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


@asynccontextmanager
async def reading(places: Places) -> AsyncIterator[socket.socket]:
    """The other end of a socket that is read."""
    listener = socket.create_server(("127.0.0.1", 0))
    there = socket.create_connection(listener.getsockname())
    here, _ = listener.accept()
    here.setblocking(False)
    listener.close()
    before = _descriptors()
    places.reads = DirectReads(
        here.fileno(), places.buffers, places.updated, places.on_bytes, places.on_turn, places.on_end
    )
    try:
        yield there
    finally:
        places.reads.stop()
        there.close()
        assert _descriptors() <= before
        here.close()


async def test_bytes_fill_place_after_place_in_order() -> None:
    places, data = Places(), os.urandom(50_000)
    async with reading(places) as there:
        there.sendall(data)
        await places.until(len(data))
        assert places.got == data
        assert places.ends == []


async def test_what_is_here_at_once_is_one_turn() -> None:
    places = Places()
    async with reading(places) as there:
        assert places.reads is not None
        places.reads.hold(True)
        there.sendall(bytes(5000))
        places.reads.hold(False)
        places.reads.hold(False)
        await places.until(5000)
        assert places.turns == 1


async def test_nothing_is_read_while_it_is_held() -> None:
    places = Places()
    async with reading(places) as there:
        assert places.reads is not None
        places.reads.hold(True)
        there.sendall(b"later")
        passed = asyncio.Event()
        other, mine = socket.socketpair()
        with other, mine:
            asyncio.get_running_loop().add_reader(mine.fileno(), passed.set)
            other.sendall(b"!")
            await asyncio.wait_for(passed.wait(), 10)  # the loop has looked at its sockets
            asyncio.get_running_loop().remove_reader(mine.fileno())
        assert not places.got
        places.reads.hold(False)
        await places.until(5)
        assert places.got == b"later"


async def test_the_other_side_closes() -> None:
    places = Places()
    async with reading(places) as there:
        there.sendall(b"last words")
        there.close()
        while not places.ends:
            await places.next()
        assert (bytes(places.got), places.ends) == (b"last words", [""])


async def test_the_other_side_is_reset() -> None:
    places = Places()
    async with reading(places) as there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        there.close()
        while not places.ends:
            await places.next()
        assert places.ends == ["Connection reset by peer"]


async def test_a_fault_of_this_side_ends_it_once() -> None:
    places, raised, told = Places(), asyncio.Event(), []

    def handler(_: object, context: dict[str, Exception]) -> None:
        told.append(context["exception"])
        raised.set()

    asyncio.get_running_loop().set_exception_handler(handler)
    places.fails = True
    async with reading(places) as there:
        there.sendall(bytes(5000))
        await asyncio.wait_for(raised.wait(), 10)
        assert len(places.ends) == 1
        assert [type(error) for error in told] == [ArithmeticError]


@pytest.mark.parametrize("size", [10, 5000])
async def test_what_is_told_may_stop_it(size: int) -> None:
    places = Places()
    places.stops = True
    async with reading(places) as there:
        there.sendall(bytes(size))
        await places.next()
        assert 0 < len(places.got) <= 1100
        assert (places.turns, places.ends) == (0, [])
