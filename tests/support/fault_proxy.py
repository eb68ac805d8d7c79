"""A TCP proxy that breaks what passes it: at once, silently, after so many bytes, or not at all."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType


class FaultProxy:
    """Between a dialler and 127.0.0.1:`target`. Use as `async with`; dial `port`."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.connections = 0
        """Made so far."""
        self.forwarded = 0
        """Bytes, both directions."""
        self._target = target
        self._server: asyncio.Server | None = None
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self.cut_at: int | None = None
        """Bytes at which everything is reset; None when that has happened."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._writers.clear()

    def cut_after(self, count: int) -> None:
        """Reset every connection once so many more bytes have passed."""
        self.cut_at = self.forwarded + count

    def freeze(self) -> None:
        """Pass nothing and say nothing; connections stay."""
        self._passing.clear()

    def refuse(self) -> None:
        """Reset every connection, and every new one at once."""
        self._refusing = True
        self.cut()

    def heal(self) -> None:
        """Pass everything again."""
        self._refusing = False
        self._passing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        tasks = [
            asyncio.ensure_future(self._pump(reader, back)),
            asyncio.ensure_future(self._pump(there, writer)),
        ]
        self._tasks |= set(tasks)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks -= set(tasks)
            for one in (writer, back):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._passing.wait()
                if self.cut_at is not None and self.forwarded + len(data) >= self.cut_at:
                    self.cut_at = None
                    self.cut()
                    return
                self.forwarded += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            return
