"""KV on the wire in fewer bytes, bit for bit the same: the numbers' planes apart, the exponents
compressed.

In little-endian floating point the last byte of each number holds its sign and most of its exponent.
Over a chunk of KV these bytes are much alike and shrink to about a third; the others are noise and are
stored. Pure: bytes in, bytes out; whether a line is slow enough for it is decided elsewhere.

An encoded chunk: bytes of the compressed plane (u32, little-endian), the compressed plane (one zstd
frame), then the other planes one after the other, the lowest first.
"""

from __future__ import annotations

import struct

import zstandard

from shared.errors import BadChunk
from shared.kv.layout import KvLayout

AS_IS, PLANES_OF_2, PLANES_OF_4 = range(3)
"""`encoding` of a KvChunk: 0: as they are; 1: numbers of 2 bytes (bf16, f16); 2: of 4 bytes (f32)."""

READS = 1 << PLANES_OF_2 | 1 << PLANES_OF_4
"""What this side can decode, a bit for each encoding: part of the handshake."""

_WIDTH = {PLANES_OF_2: 2, PLANES_OF_4: 4}
_OF_DTYPE = {"bfloat16": PLANES_OF_2, "float16": PLANES_OF_2, "float32": PLANES_OF_4}
_HEAD = struct.Struct("<I")
_NOISE = {
    "window_log": 18,
    "hash_log": 6,
    "chain_log": 6,
    "search_log": 1,
    "min_match": 7,
    "target_length": 0,
}
"""Parameters of zstd's fast strategy. Exponents repeat in how often each occurs, not in sequences: next to no
search for matches, all by Huffman codes. On KV of SmolLM2-135M 2.7 x as fast as zstd's level 1, and 1.45 x
smaller in all instead of 1.43 x."""


def encoding_for(dtype: str) -> int:
    """The encoding for KV of a dtype; AS_IS for one that is not known to shrink."""
    return _OF_DTYPE.get(dtype, AS_IS)


def encoding_of(layout: KvLayout) -> int:
    """The encoding for blocks of a layout; AS_IS where its numbers are not all of one type."""
    dtypes = {part.dtype for group in layout.groups for part in group.components}
    return encoding_for(dtypes.pop()) if len(dtypes) == 1 else AS_IS


def check_encoded(encoding: int, length: int, size: int, most: int) -> None:
    """Whether `size` bytes may be an encoded chunk of `length` bytes, of which none is larger than `most`.
    Raises BadChunk: such a chunk is not even received."""
    if encoding not in _WIDTH:
        raise BadChunk(f"encoding {encoding}; this side reads 0 to {PLANES_OF_4}")
    if length > most or length % _WIDTH[encoding]:
        raise BadChunk(f"a chunk of encoding {encoding} that is to become {length} bytes; at most {most}")
    if size >= length:
        raise BadChunk(f"{size} bytes of encoding {encoding} for a chunk of {length}: no smaller")


class PlaneCodec:
    """Encodes and decodes chunks. Keeps scratch memory: one for each thread."""

    def __init__(self) -> None:
        fast = zstandard.ZstdCompressionParameters(strategy=zstandard.STRATEGY_FAST, **_NOISE)
        self._compressor = zstandard.ZstdCompressor(compression_params=fast)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, data: memoryview | bytes, encoding: int) -> bytes | None:
        """The encoded chunk; None where it would be no smaller, or no whole numbers: send it AS_IS."""
        width = _WIDTH.get(encoding)
        raw = bytes(data)
        if width is None or not raw or len(raw) % width:
            return None
        try:
            top = self._compressor.compress(raw[width - 1 :: width])
        except zstandard.ZstdError:  # no memory for its tables: the chunk need not wait for that
            return None
        if _HEAD.size + len(top) >= len(raw) // width:
            return None
        return b"".join((_HEAD.pack(len(top)), top, *(raw[at::width] for at in range(width - 1))))

    def decode(self, data: memoryview | bytes, encoding: int, into: memoryview) -> None:
        """Fill `into`, of the length of the decoded chunk. Raises BadChunk for what `encode` would not have
        made; `into` is untouched then."""
        width = _WIDTH.get(encoding)
        if width is None:
            raise BadChunk(f"encoding {encoding}; this side reads 0 to {PLANES_OF_4}")
        count, rest = divmod(len(into), width)
        if rest or len(data) < _HEAD.size:
            raise BadChunk(f"{len(data)} bytes of encoding {encoding} for a chunk of {len(into)}")
        size = _HEAD.unpack_from(data)[0]
        stored = _HEAD.size + size
        if len(data) != stored + count * (width - 1):
            raise BadChunk(f"{len(data)} bytes of encoding {encoding} for a chunk of {len(into)}")
        out = bytearray(len(into))
        out[width - 1 :: width] = self._plane(bytes(data[_HEAD.size : stored]), count)
        for at in range(width - 1):
            out[at::width] = data[stored + at * count : stored + (at + 1) * count]
        into[:] = out

    def _plane(self, frame: bytes, count: int) -> bytes:
        """A compressed plane of `count` bytes. Its length is looked at before memory is taken."""
        try:
            if zstandard.frame_content_size(frame) != count:
                raise BadChunk(f"a compressed plane that is not of {count} bytes")
            return self._decompressor.decompress(frame, max_output_size=count, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise BadChunk(f"a compressed plane that is none: {error}") from error
