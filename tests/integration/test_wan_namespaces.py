"""The line between namespaces: the kernel's TCP sees its rate, round trip, loss and cuts."""

from __future__ import annotations

import asyncio
import random
import socket
import time

import pytest

from benchmarks.wan.impairment import Direction, Impairment
from benchmarks.wan.namespaces import NamespaceLine, inside, missing
from benchmarks.wan.resets import Flows

needs_root = pytest.mark.skipif(bool(missing()), reason=f"no line between namespaces here: {missing()}")


def test_rate_delay_and_a_bounded_buffer() -> None:
    line = Direction(Impairment(rate_mbit=8, delay_ms=20, buffer_ms=15), random.Random(1))
    assert line.accept(1.0, 10_000) == pytest.approx(1.030)
    assert line.accept(1.0, 10_000) == pytest.approx(1.040)
    assert line.accept(1.0, 10_000) is None  # 20 ms of the rate wait
    assert line.accept(1.015, 5_000) == pytest.approx(1.045)
    assert (line.carried, line.dropped) == (25_000, 1)


def test_jitter_does_not_change_the_order() -> None:
    line = Direction(Impairment(jitter_ms=50), random.Random(1))
    due = [line.accept(at / 1000, 100) or 0.0 for at in range(200)]
    assert due == sorted(due)
    assert max(one - at / 1000 for at, one in enumerate(due)) > 0.02


@pytest.mark.parametrize("burst", [1.0, 5.0])
def test_so_many_packets_are_lost_and_so_many_in_a_row(burst: float) -> None:
    line = Direction(Impairment(loss=0.1, burst=burst), random.Random(1))
    lost = [line.accept(0.0, 1) is None for _ in range(50_000)]
    assert sum(lost) / len(lost) == pytest.approx(0.1, rel=0.1)
    runs = sum(one and not other for one, other in zip(lost, [False, *lost], strict=False))
    expected = 1 / 0.9 if burst == 1 else burst / (1 - 0.1 / burst)
    assert sum(lost) / runs == pytest.approx(expected, rel=0.15)


def test_what_is_no_tcp_makes_no_reset() -> None:
    flows = Flows()
    for packet in (b"", b"\x45" + bytes(60), b"\x60" + bytes(60)):
        flows.saw(packet)
    assert flows.resets() == []


async def _pair(line: NamespaceLine) -> tuple[socket.socket, socket.socket]:
    loop = asyncio.get_running_loop()
    with inside(line.far):
        listener = socket.create_server((line.far_address, 0))
    with inside(line.near):
        near = socket.socket()
    for each in (listener, near):
        each.setblocking(False)
    connect = loop.sock_connect(near, listener.getsockname())
    (far, _), _none = await asyncio.gather(loop.sock_accept(listener), connect)
    listener.close()
    return near, far


@needs_root
async def test_the_kernels_tcp_runs_over_the_line() -> None:
    loop = asyncio.get_running_loop()
    async with NamespaceLine(Impairment(rate_mbit=80, delay_ms=15)) as line:
        near, far = await _pair(line)
        began = time.monotonic()
        await loop.sock_sendall(near, b"ping")
        assert await loop.sock_recv(far, 10) == b"ping"
        await loop.sock_sendall(far, b"pong")
        assert await loop.sock_recv(near, 10) == b"pong"
        assert time.monotonic() - began >= 0.030
        forward, backward = line.carried
        assert 0 < backward < forward + 1000

        line.cut()
        await loop.sock_sendall(near, b"during")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_recv(far, 10), 0.3)
        line.heal()
        assert await asyncio.wait_for(loop.sock_recv(far, 10), 10) == b"during"  # the kernel sends it again
        assert sum(line.dropped) > 0

        line.cut(silent=False)
        for each in (near, far):
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(loop.sock_recv(each, 10), 5)
            each.close()


@needs_root
async def test_the_rate_holds_for_a_stream() -> None:
    loop = asyncio.get_running_loop()
    async with NamespaceLine(Impairment(rate_mbit=80, delay_ms=5)) as line:
        near, far = await _pair(line)
        sending = asyncio.create_task(loop.sock_sendall(near, bytes(2_000_000)))
        began, got = time.monotonic(), 0
        while got < 2_000_000:
            got += len(await loop.sock_recv(far, 1 << 16))
        seconds = time.monotonic() - began
        await sending
        assert seconds >= 0.8 * 2_000_000 / 10e6  # never faster than the line, but for what was under way
        near.close()
        far.close()


@needs_root
async def test_a_route_crosses_the_line_and_a_dead_target_resets_the_caller() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(-1)).upper())
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, NamespaceLine(Impairment(delay_ms=5)) as line:
        reader, writer = await asyncio.open_connection("127.0.0.1", await line.route("127.0.0.1", port))
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read(-1) == b"HELLO"
        assert min(line.carried) > 5
        writer.close()
        server.close()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", await line.route("127.0.0.1", port, flip=True)
        )
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()


@needs_root
async def test_a_short_line_is_not_a_long_one() -> None:
    """Waits are not rounded to milliseconds. The best of many counts: any may meet a busy machine."""
    loop = asyncio.get_running_loop()
    async with NamespaceLine(Impairment(delay_ms=0.25)) as line:
        near, far = await _pair(line)
        trips = []
        for _ in range(200):
            began = time.perf_counter()
            await loop.sock_sendall(near, b"ping")
            await loop.sock_recv(far, 10)
            await loop.sock_sendall(far, b"pong")
            await loop.sock_recv(near, 10)
            trips.append(time.perf_counter() - began)
        near.close()
        far.close()
    assert 0.0005 <= min(trips) < 0.0015, "rounded up it were two milliseconds"
