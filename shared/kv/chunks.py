"""What a chunk's header says, where its bytes belong in a block, and whether that place exists."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from shared.errors import BadChunk
from shared.kv.layout import KvLayout


class Chunk(Protocol):
    """What is read of a chunk's header (the wire's KvChunk)."""

    @property
    def ticket(self) -> bytes: ...
    @property
    def group(self) -> int: ...
    @property
    def shard(self) -> int: ...
    @property
    def block(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


class Target(msgspec.Struct, frozen=True):
    """Where a chunk's decoded bytes go: bytes [first, end) of a pool block, all its groups together."""

    block: int
    first: int
    end: int


class Elsewhere(enum.Enum):
    SCRATCH = "scratch"  # receive and forget: repeated, overlapping, published or not asked for
    GONE = "gone"  # the ticket is unknown or over: receive, forget, and answer so


SCRATCH = Elsewhere.SCRATCH
GONE = Elsewhere.GONE


class BlockMap:
    """Byte ranges of a block by group. One shard a group."""

    def __init__(self, layout: KvLayout) -> None:
        self._groups: dict[int, tuple[int, int]] = {}  # id -> (first byte in the block, bytes)
        base = 0
        for group in layout.groups:
            self._groups[group.id] = (base, group.block_bytes)
            base += group.block_bytes

    def span(self, chunk: Chunk, upto: int) -> tuple[int, int]:
        """The chunk's [first, end) in its block. Raises BadChunk where there is no such place."""
        place = self._groups.get(chunk.group)
        if place is None:
            raise BadChunk(f"group {chunk.group} is not in the layout, which has {sorted(self._groups)}")
        if chunk.shard != 0:
            raise BadChunk(f"shard {chunk.shard} of group {chunk.group}: there is only shard 0")
        if not 0 <= chunk.block < upto:
            raise BadChunk(f"block {chunk.block} is not one of the ticket's {upto}")
        base, size = place
        first, length = chunk.offset, chunk.length
        if length < 1 or first < 0 or first + length > size:
            raise BadChunk(
                f"bytes {first} to {first + length} are not in a block's {size} of group {chunk.group}"
            )
        return base + first, base + first + length
