"""Which encodings of KV chunks there are, and what may be one (pure).

What an encoded chunk looks like is said where it is made, in `planes`. Whether a line is slow enough for it
is decided elsewhere.
"""

from __future__ import annotations

from typing import Protocol

from shared.errors import BadChunk
from shared.kv.layout import KvLayout

AS_IS, PLANES_OF_2, PLANES_OF_4 = range(3)
"""`encoding` of a KvChunk: 0: as they are; 1: numbers of 2 bytes (bf16, f16); 2: of 4 bytes (f32)."""

READS = 1 << PLANES_OF_2 | 1 << PLANES_OF_4
"""What a side with a codec can decode, a bit for each encoding: part of the handshake."""

WIDTH = {PLANES_OF_2: 2, PLANES_OF_4: 4}
"""Bytes of a number, by encoding."""
_OF_DTYPE = {"bfloat16": PLANES_OF_2, "float16": PLANES_OF_2, "float32": PLANES_OF_4}


class ChunkCodec(Protocol):
    """Encodes and decodes chunks, in one thread at a time."""

    def encode(self, data: memoryview | bytes, encoding: int) -> bytes | None:
        """The encoded chunk; None where it would be no smaller, or no whole numbers: send it AS_IS."""

    def decode(self, data: memoryview | bytes, encoding: int, into: memoryview) -> None:
        """Fill `into`, of the length of the decoded chunk. Raises BadChunk for what `encode` would not have
        made; `into` is untouched then."""


def encoding_for(dtype: str) -> int:
    """The encoding for KV of a dtype; AS_IS for one that is not known to shrink."""
    return _OF_DTYPE.get(dtype, AS_IS)


def encoding_of(layout: KvLayout) -> int:
    """The encoding for blocks of a layout; AS_IS where its numbers are not all of one type."""
    dtypes = {part.dtype for group in layout.groups for part in group.components}
    return encoding_for(dtypes.pop()) if len(dtypes) == 1 else AS_IS


def check_encoded(encoding: int, length: int, size: int, most: int, reads: int = READS) -> None:
    """Whether `size` bytes may be an encoded chunk of `length` bytes, at a side that `reads` such encodings
    and takes `most` bytes of a chunk. Raises BadChunk: such a chunk is not even received."""
    if encoding not in WIDTH or not reads >> encoding & 1:
        raise BadChunk(f"encoding {encoding}; this side reads {_listed(reads)}")
    if length > most or length % WIDTH[encoding]:
        raise BadChunk(f"a chunk of encoding {encoding} that is to become {length} bytes; at most {most}")
    if size >= length:
        raise BadChunk(f"{size} bytes of encoding {encoding} for a chunk of {length}: no smaller")


def _listed(reads: int) -> str:
    return ", ".join(map(str, (AS_IS, *(each for each in WIDTH if reads >> each & 1))))
