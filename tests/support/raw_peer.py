"""A peer that does the handshake by the book and then sends whatever a test gives it."""

from __future__ import annotations

import asyncio
import os

from shared.errors import Remote
from shared.wire.connection import ChunkStart, Connection, Event, Opened
from shared.wire.handshake import Agreed, Dialler, Identity


class RawPeer:
    """One connection to an endpoint on 127.0.0.1. Closed by the test, or by the endpoint."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> None:
        self.connection = connection
        self.agreed: Agreed | None = None
        self._reader = reader
        self._writer = writer

    @classmethod
    async def dial(
        cls,
        port: int,
        identity: Identity,
        key: bytes | None = None,
        *,
        bulk: int = 0,
        session: int = 0,
        peer_incarnation: int = 0,
        last_seq: int = 0,
    ) -> RawPeer:
        """Connect and send the Hello."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        handshake = Dialler(
            identity,
            key,
            os.urandom(16),
            bulk=bulk,
            session=session,
            peer_incarnation=peer_incarnation,
            last_seq=last_seq,
        )
        connection = Connection(handshake, max_chunk=1 << 20)
        peer = cls(reader, writer, connection)
        peer.send(connection.take_output())
        return peer

    async def opened(self) -> RawPeer:
        """Do the rest of the handshake. Closes and raises where it fails."""
        try:
            while self.agreed is None:
                for event in await self.events():
                    if isinstance(event, Opened):
                        self.agreed = event.agreed
        except Remote:
            self.send(self.connection.last_words())
            await self._writer.drain()
            await self.until_closed()
            await self.close()
            raise
        return self

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def events(self) -> list[Event]:
        """What the next bytes from the endpoint say. Raises EOFError when it has closed."""
        data = await self._reader.read(1 << 16)
        if not data:
            raise EOFError
        found: list[Event] = []
        at = 0
        while True:
            while (event := self.connection.next_event()) is not None:
                found.append(event)
                if isinstance(event, ChunkStart):
                    self.connection.receive_into(memoryview(bytearray(event.size)))
            if at == len(data):
                break
            buffer = self.connection.get_buffer()
            count = min(len(buffer), len(data) - at)
            buffer[:count] = data[at : at + count]
            self.connection.buffer_updated(count)
            at += count
        self.send(self.connection.take_output())
        return found

    async def until_closed(self) -> None:
        """Read until the endpoint has closed the connection."""
        try:
            while await self._reader.read(1 << 16):
                pass
        except ConnectionError:
            pass

    async def close(self) -> None:
        self._writer.transport.abort()
        await asyncio.sleep(0)
