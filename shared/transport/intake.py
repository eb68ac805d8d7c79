"""Chunks on their way in: each goes straight into the memory that the core names, or into scratch.

Knows no sessions; a chunk is a header and a place for its bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shared.errors import BadChunk
from shared.transport.tcp import Stream
from shared.wire.connection import ChunkDone, ChunkStart
from shared.wire.messages import KvChunk
from shared.wire.port import BulkCore


@dataclass(slots=True)
class _Landing:
    """The chunk that a connection is receiving."""

    node: str
    chunk: KvChunk
    target: memoryview
    in_place: bool


class Intake:
    """All bulk connections of an endpoint. Scratch is one chunk per connection, made when first needed."""

    def __init__(self, core: BulkCore, max_chunk: int, counters: Counter[str]) -> None:
        self._core = core
        self._max_chunk = max_chunk
        self._landing: dict[Stream, _Landing] = {}
        self._scratch: dict[Stream, memoryview] = {}
        self._counters = counters

    def start(self, stream: Stream, node: str, event: ChunkStart) -> None:
        """A chunk begins on a connection. Raises BadChunk where it cannot be taken at all."""
        chunk = event.chunk
        if chunk.encoding != 0:
            raise BadChunk(f"chunk of block {chunk.block} has encoding {chunk.encoding}; this side reads 0")
        buffer = self._core.chunk_buffer(node, chunk)
        in_place = buffer is not None and len(buffer) == event.size
        target = buffer[:] if buffer is not None and in_place else self._spare(stream)[: event.size]
        self._landing[stream] = _Landing(node, chunk, target, in_place)
        stream.connection.receive_into(target)

    def done(self, stream: Stream, now: float, event: ChunkDone) -> None:
        """All bytes of the chunk are here."""
        landing = self._landing.pop(stream)
        self._counters["chunk_bytes_in"] += len(landing.target)
        if not landing.in_place:
            self._counters["chunk_bytes_scratch"] += len(landing.target)
        self._core.on_chunk(now, landing.node, event.chunk, landing.target, landing.in_place)

    def end(self, stream: Stream) -> None:
        """The connection is over: whatever was landing is given up."""
        landing = self._landing.pop(stream, None)
        self._scratch.pop(stream, None)
        if landing is not None and landing.in_place:
            landing.target.release()  # nothing is received into it any more
            self._core.on_chunk_broken(landing.node, landing.chunk)

    def _spare(self, stream: Stream) -> memoryview:
        known = self._scratch.get(stream)
        if known is None:
            known = self._scratch[stream] = memoryview(bytearray(self._max_chunk))
        return known
