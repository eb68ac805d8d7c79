"""A TCP proxy that makes connections through it share one line: rate, delay, cuts. For ordinary users (no
root).

TCP ends at the proxy, so congestion control is hidden; what is real is the shared rate, the round trip, the
order of bytes and the back-pressure: the proxy reads no faster than its buffer empties.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import cast

from benchmarks.wan.shaper import Shaper

_PIECE = 8 << 10  # bytes delivered at once: smooth arrival at low rates
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: closing sends RST
_SOCKET_BUFFER = 32 << 10  # kernel buffers at the proxy: small, or they would hide the back-pressure


class WanProxy:
    """All routes of one line. Use as `async with WanProxy(rate_mbit, rtt_ms) as wan`."""

    def __init__(self, rate_mbit: float, rtt_ms: float, *, buffer_ms: float = 20.0) -> None:
        """`rate_mbit` each direction (0: unlimited), shared by all routes; `buffer_ms` of rate may queue."""
        self.shapers = tuple(
            Shaper(rate_mbit * 1e6 / 8, rtt_ms / 2e3, buffer_ms / 1e3)
            for _direction in ("forward", "backward")
        )
        self._servers: list[asyncio.Server] = []
        self._pairs: set[_Pair] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._cut = False

    async def __aenter__(self) -> WanProxy:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def route(
        self, host: str, port: int, *, flip: bool = False, listen: tuple[str, int] = ("127.0.0.1", 0)
    ) -> int:
        """Listen on loopback and forward to host:port; the port listened on.

        `flip`: the dialling side stands at the far end, so that its bytes travel on the backward direction.
        """
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        listener.bind(listen)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Inlet(self, host, port, flip), sock=listener)
        self._servers.append(server)
        return int(listener.getsockname()[1])

    def set_rate(self, rate_mbit: float) -> None:
        """Change the rate of both directions from now on."""
        for shaper in self.shapers:
            shaper.rate = rate_mbit * 1e6 / 8

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes taken so far, (forward, backward)."""
        return self.shapers[0].carried, self.shapers[1].carried

    def cut(self, *, silent: bool = True) -> None:
        """Cut the line: bytes stop (`silent`) or every connection is reset. New connections hang, or are
        reset."""
        self._cut = True
        for pair in list(self._pairs):
            pair.freeze()
            if not silent:
                pair.abort()

    def heal(self) -> None:
        """End a cut. Connections that were cut silently are gone, as after a long outage: both ends are
        reset."""
        self._cut = False
        for pair in list(self._pairs):
            if pair.frozen:
                pair.abort()

    async def close(self) -> None:
        """Stop listening and end all connections."""
        for server in self._servers:
            server.close()
        for task in list(self._dialling):
            task.cancel()
        for pair in list(self._pairs):
            pair.abort()
        for server in self._servers:
            with contextlib.suppress(asyncio.CancelledError):
                await server.wait_closed()

    def _connected(self, inlet: _Inlet) -> None:
        pair = _Pair(self, inlet)
        self._pairs.add(pair)
        if self._cut:
            pair.freeze()
            return
        task = asyncio.get_running_loop().create_task(pair.dial())
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def _ended(self, pair: _Pair) -> None:
        self._pairs.discard(pair)


class _Half(asyncio.Protocol):
    """One socket of a pair: what it reads goes on the line towards the other."""

    transport: asyncio.Transport
    pair: _Pair
    direction: int

    def data_received(self, data: bytes) -> None:
        self.pair.read(self, data)

    def eof_received(self) -> bool:
        self.pair.read(self, b"")
        return True

    def connection_lost(self, _exc: Exception | None) -> None:
        self.pair.lost()


class _Inlet(_Half):
    """The accepted side."""

    def __init__(self, proxy: WanProxy, host: str, port: int, flip: bool) -> None:
        self.proxy = proxy
        self.target = (host, port)
        self.direction = 1 if flip else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.transport.pause_reading()
        _no_delay(self.transport)
        self.proxy._connected(self)


class _Outlet(_Half):
    """The dialled side."""

    def __init__(self, pair: _Pair, direction: int) -> None:
        self.pair = pair
        self.direction = direction

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        _no_delay(self.transport)


class _Pair:
    """Two joined sockets and the bytes that are on the line between them."""

    def __init__(self, proxy: WanProxy, inlet: _Inlet) -> None:
        self.frozen = False
        self._proxy = proxy
        self._inlet = inlet
        self._outlet: _Outlet | None = None
        self._flying: tuple[deque[tuple[float, bytes]], ...] = (deque(), deque())
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle | None] = [None, None]
        inlet.pair = self

    async def dial(self) -> None:
        try:
            _transport, outlet = await self._loop.create_connection(
                lambda: _Outlet(self, 1 - self._inlet.direction), *self._inlet.target
            )
        except OSError:
            self.abort()
            return
        self._outlet = outlet
        if self._inlet.transport.is_closing() or self.frozen:
            self.abort()
            return
        self._inlet.transport.resume_reading()
        self._arm(self._inlet.direction)

    def read(self, half: _Half, data: bytes) -> None:
        """Bytes from one socket (b"": its end) go on the line."""
        if self.frozen:
            return
        now = self._loop.time()
        shaper = self._proxy.shapers[half.direction]
        flying = self._flying[half.direction]
        for piece in _pieces(data):
            flying.append((shaper.accept(now, len(piece)), piece))
        self._arm(half.direction)
        room = shaper.room_at(now)
        if room > now and data:
            half.transport.pause_reading()
            self._loop.call_at(room, self._resume, half)

    def _resume(self, half: _Half) -> None:
        if self.frozen or half.transport.is_closing():
            return
        now = self._loop.time()
        room = self._proxy.shapers[half.direction].room_at(now)
        if room > now + 1e-4:
            self._loop.call_at(room, self._resume, half)
        else:
            half.transport.resume_reading()

    def _arm(self, direction: int) -> None:
        if self._timers[direction] is None and self._flying[direction]:
            due = self._flying[direction][0][0]
            self._timers[direction] = self._loop.call_at(due, self._deliver, direction)

    def _deliver(self, direction: int) -> None:
        self._timers[direction] = None
        if self.frozen:
            return
        flying = self._flying[direction]
        target = self._outlet if direction == self._inlet.direction else self._inlet
        if target is None:
            return  # uvloop may read before the pause of `connection_made` holds: `dial` goes on
        now = self._loop.time()
        while flying and flying[0][0] <= now + 1e-4:
            _due, piece = flying.popleft()
            if target.transport.is_closing():
                continue
            if piece:
                target.transport.write(piece)
            elif target.transport.can_write_eof():
                with contextlib.suppress(OSError):  # reset since its own end was read: nothing tells of it
                    target.transport.write_eof()
        self._arm(direction)

    def freeze(self) -> None:
        """From now on nothing moves: what is on the line is lost, and nobody is told."""
        self.frozen = True
        for half in self._halves():
            if not half.transport.is_closing():
                half.transport.pause_reading()

    def abort(self) -> None:
        """Reset both sides."""
        for half in self._halves():
            if not half.transport.is_closing():
                sock = half.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            half.transport.abort()
        if self._outlet is None:
            self._proxy._ended(self)

    def lost(self) -> None:
        """One socket is gone: the other goes too, once what is on the line has arrived."""
        self._proxy._ended(self)
        if self.frozen:
            return
        for half in self._halves():
            direction = 1 - half.direction  # the bytes that travel towards this half
            due = self._flying[direction][-1][0] if self._flying[direction] else self._loop.time()
            self._loop.call_at(due + 1e-3, half.transport.close)

    def _halves(self) -> Iterator[_Half]:
        yield self._inlet
        if self._outlet is not None:
            yield self._outlet


def _pieces(data: bytes) -> Iterator[bytes]:
    if not data:
        yield data
    for at in range(0, len(data), _PIECE):
        yield data[at : at + _PIECE]


def _no_delay(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
    transport.set_write_buffer_limits(high=4 * _PIECE)
