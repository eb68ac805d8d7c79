"""The emulated line: bytes arrive whole and in order, ends travel, cuts cut, and the count is right."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from benchmarks.wan.proxy import WanProxy
from benchmarks.wan.shaper import Shaper


def test_one_rate_is_shared_and_the_delay_comes_on_top() -> None:
    shaper = Shaper(rate=1000.0, delay=0.5, buffer_seconds=0.1)
    assert shaper.accept(10.0, 500) == pytest.approx(11.0)  # 0.5 s to carry, 0.5 s under way
    assert shaper.accept(10.0, 250) == pytest.approx(11.25)  # waits behind the first
    assert shaper.room_at(10.0) == pytest.approx(10.65)
    assert shaper.accept(20.0, 0) == pytest.approx(20.5)  # idle in between: nothing saved up
    assert shaper.carried == 750


def test_without_a_rate_only_the_delay_counts() -> None:
    shaper = Shaper(rate=0.0, delay=0.25, buffer_seconds=0.1)
    assert shaper.accept(1.0, 10**9) == 1.25
    assert shaper.room_at(1.0) == 1.0


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write(b"end")
        writer.close()
        await writer.wait_closed()
    except ConnectionError:
        writer.close()


async def test_bytes_and_ends_pass_both_ways_and_are_counted() -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, WanProxy(rate_mbit=400.0, rtt_ms=2.0) as wan:
        port = await wan.route("127.0.0.1", server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = bytes(range(256)) * 2000
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent + b"end"
        assert wan.carried == (len(sent), len(sent) + 3)
        writer.close()
        await writer.wait_closed()


async def test_an_end_for_a_socket_that_was_reset_behind_its_own_end_is_no_error() -> None:
    said: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _reader, writer: accepted.set_result(writer), "127.0.0.1", 0)
    async with server, WanProxy(rate_mbit=0.0, rtt_ms=200.0) as wan:
        port = await wan.route("127.0.0.1", server.sockets[0].getsockname()[1])
        _reader, near = await asyncio.open_connection("127.0.0.1", port)
        far = await accepted
        for writer in (far, near):
            writer.write_eof()
        await asyncio.sleep(0.02)
        for writer in (far, near):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        await asyncio.sleep(0.15)  # the ends have arrived
    assert said == []


@pytest.mark.parametrize("silent", [True, False])
async def test_a_cut_ends_every_connection_and_heals_for_new_ones(silent: bool) -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, WanProxy(rate_mbit=0.0, rtt_ms=0.0) as wan:
        port = await wan.route("127.0.0.1", server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        wan.cut(silent=silent)
        if silent:
            writer.write(b"during")
        wan.heal()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        again, second = await asyncio.open_connection("127.0.0.1", port)
        second.write(b"after")
        assert await again.readexactly(5) == b"after"
        second.close()
        writer.close()


async def test_a_dead_target_resets_the_caller() -> None:
    async with WanProxy(rate_mbit=0.0, rtt_ms=0.0) as wan:
        probe = await asyncio.start_server(_echo, "127.0.0.1", 0)
        dead = probe.sockets[0].getsockname()[1]
        probe.close()
        await probe.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", await wan.route("127.0.0.1", dead))
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
