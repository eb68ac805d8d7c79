"""Chunks on their way in: each goes straight into the memory that the core names, or into scratch.

Encoded chunks are received into spare memory and decoded from there into the core's, by threads; a connection
whose chunks wait for that is not read meanwhile. Knows no sessions; a chunk is a header and a place for its
bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from shared.transport.codec_threads import CodecThreads, Decoded
from shared.transport.compression import AS_IS, check_encoded
from shared.transport.tcp import Stream
from shared.wire.connection import ChunkDone, ChunkStart
from shared.wire.messages import KvChunk
from shared.wire.port import BulkCore

_NOTHING = memoryview(b"")


class From(Protocol):
    """Whom chunks come from."""

    node: str
    over: bool
    """Its session has ended."""


class _Landing(msgspec.Struct):
    """The chunk that a connection is receiving. `spare`: the memory that it goes to where that is not the
    core's."""

    peer: From
    chunk: KvChunk
    target: memoryview
    spare: memoryview | None


class Intake:
    """All bulk connections of an endpoint. Spare memory, a chunk each: one for every connection that needs
    it, and one for each chunk that is being decoded. `perform` does what the core then asks for."""

    def __init__(
        self,
        core: BulkCore,
        max_chunk: int,
        counters: Counter[str],
        codec: CodecThreads,
        clock: Callable[[], float],
        perform: Callable[[], None],
    ) -> None:
        self._core = core
        self._max_chunk = max_chunk
        self._counters = counters
        self._codec = codec
        self._clock = clock
        self._perform = perform
        self._landing: dict[Stream, _Landing] = {}
        self._spare: list[memoryview] = []
        self._decoding: dict[asyncio.Future[Decoded], Stream] = {}

    def start(self, stream: Stream, peer: From, event: ChunkStart) -> bool:
        """A chunk begins on a connection. False: not all of it is here yet. Raises BadChunk where it cannot
        be taken at all."""
        chunk = event.chunk
        buffer = None
        if chunk.encoding == AS_IS:
            buffer = self._core.chunk_buffer(peer.node, chunk)
        else:
            check_encoded(chunk.encoding, chunk.length, event.size, self._max_chunk, self._codec.reads)
        spare = None
        if buffer is not None and len(buffer) == event.size:
            target = buffer[:]
        else:
            spare = self._spare.pop() if self._spare else memoryview(bytearray(self._max_chunk))
            target = spare[: event.size]
        self._landing[stream] = _Landing(peer, chunk, target, spare)
        return stream.connection.receive_into(target)

    def done(self, stream: Stream, now: float, event: ChunkDone) -> None:
        """All bytes of the chunk are here."""
        landing = self._landing.pop(stream)
        chunk, target = event.chunk, landing.target
        self._counters["chunk_bytes_in"] += len(target)
        if chunk.encoding != AS_IS:
            self._decode(stream, now, landing)
            return
        in_place = landing.spare is None
        self._core.on_chunk(now, landing.peer.node, chunk, target, in_place)
        if not in_place:
            self._counters["chunk_bytes_scratch"] += len(target)
            self._give_back(landing)

    def end(self, stream: Stream) -> None:
        """The connection is over: whatever was landing is given up. What is being decoded was here whole."""
        landing = self._landing.pop(stream, None)
        if landing is None:
            return
        landing.target.release()  # nothing is received into it any more
        if landing.spare is None:
            self._core.on_chunk_broken(landing.peer.node, landing.chunk)
        self._give_back(landing)

    async def settled(self) -> None:
        """Returns when nothing is being decoded."""
        while self._decoding:
            await asyncio.wait(self._decoding)

    def _give_back(self, landing: _Landing) -> None:
        if landing.spare is not None and len(self._spare) < 2 * self._codec.parallel:
            self._spare.append(landing.spare)

    # --- encoded chunks ---

    def _decode(self, stream: Stream, now: float, landing: _Landing) -> None:
        """Have a thread decode the chunk into the core's memory, where the core wants it."""
        chunk = landing.chunk
        buffer = self._core.chunk_buffer(landing.peer.node, chunk)
        if buffer is None or len(buffer) != chunk.length:
            self._counters["chunk_bytes_scratch"] += len(landing.target)
            self._core.on_chunk(now, landing.peer.node, chunk, _NOTHING, False)
            self._give_back(landing)
            return
        into = buffer[:]
        work = self._codec.decode(landing.target, chunk.encoding, into)
        self._decoding[work] = stream
        stream.hold(self._waiting(stream) > self._codec.parallel)
        work.add_done_callback(lambda work: self._decoded(work, landing, into))

    def _decoded(self, work: asyncio.Future[Decoded], landing: _Landing, into: memoryview) -> None:
        """The chunk is in the core's memory. Where it could not be decoded that memory holds what was there
        before: the checksum says so."""
        stream = self._decoding.pop(work)
        stream.hold(self._waiting(stream) > self._codec.parallel)
        self._give_back(landing)
        chunk, peer = landing.chunk, landing.peer
        self._codec.note_decoded(chunk.length, work.result())
        if peer.over:
            into.release()
            self._core.on_chunk_broken(peer.node, chunk)
        else:
            self._core.on_chunk(self._clock(), peer.node, chunk, into, True)
        self._perform()

    def _waiting(self, stream: Stream) -> int:
        return sum(one is stream for one in self._decoding.values())
