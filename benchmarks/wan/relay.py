"""Joins a socket outside of a line to one on it, byte for byte; a reset on one side resets the other."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

_PIECE = 256 << 10
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: closing sends RST

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[], Awaitable[Streams]]


class Relay:
    """Everything accepted by its servers is joined to a connection that `dial` makes."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket, dial: Dial) -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(_join((reader, writer), dial))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._servers.append(await asyncio.start_server(accepted, sock=listener, limit=_PIECE))

    async def close(self) -> None:
        """Listen no longer and reset all that is joined."""
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _join(one: Streams, dial: Dial) -> None:
    ends = [one[1]]
    try:
        other = await dial()
        ends.append(other[1])
        await asyncio.gather(_pump(one[0], other[1]), _pump(other[0], one[1]))
    except (OSError, asyncio.CancelledError):
        for writer in ends:
            _reset(writer)
    finally:
        for writer in ends:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
