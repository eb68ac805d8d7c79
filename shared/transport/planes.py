"""KV on the wire in fewer bytes, bit for bit the same: the numbers' planes apart, the exponents
compressed.

In little-endian floating point the last byte of each number holds its sign and most of its exponent.
Over a chunk of KV these bytes are much alike and shrink to about a third; the others are noise and are
stored. Pure: bytes in, bytes out. All that takes time is done without the interpreter's lock.

An encoded chunk: bytes of the compressed plane (u32, little-endian), the compressed plane (one zstd
frame), then the other planes one after the other, the lowest first.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import zstandard

from shared.errors import BadChunk
from shared.transport.compression import PLANES_OF_2, PLANES_OF_4, WIDTH

_NUMBER = {PLANES_OF_2: "<u2", PLANES_OF_4: "<u4"}
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

_Numbers = np.ndarray[tuple[int], np.dtype[Any]]


class PlaneCodec:
    """Encodes and decodes chunks."""

    def __init__(self) -> None:
        fast = zstandard.ZstdCompressionParameters(strategy=zstandard.STRATEGY_FAST, **_NOISE)
        self._compressor = zstandard.ZstdCompressor(compression_params=fast)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, data: memoryview | bytes, encoding: int) -> bytes | None:
        """The encoded chunk; None where it would be no smaller, or no whole numbers: send it AS_IS."""
        width = WIDTH.get(encoding)
        if width is None or not data or len(data) % width:
            return None
        numbers: _Numbers = np.frombuffer(data, _NUMBER[encoding])
        try:
            top = self._compressor.compress(_plane(numbers, width - 1))
        except zstandard.ZstdError:  # no memory for its tables: the chunk need not wait for that
            return None
        if _HEAD.size + len(top) >= len(numbers):
            return None
        return b"".join((_HEAD.pack(len(top)), top, *(_plane(numbers, at) for at in range(width - 1))))

    def decode(self, data: memoryview | bytes, encoding: int, into: memoryview) -> None:
        """Fill `into`, of the length of the decoded chunk. Raises BadChunk for what `encode` would not have
        made; `into` is untouched then."""
        width = WIDTH.get(encoding)
        if width is None:
            raise BadChunk(f"encoding {encoding}; this side reads 0 to {PLANES_OF_4}")
        count, rest = divmod(len(into), width)
        if rest or len(data) < _HEAD.size:
            raise BadChunk(f"{len(data)} bytes of encoding {encoding} for a chunk of {len(into)}")
        size = _HEAD.unpack_from(data)[0]
        stored = _HEAD.size + size
        if len(data) != stored + count * (width - 1):
            raise BadChunk(f"{len(data)} bytes of encoding {encoding} for a chunk of {len(into)}")
        top = self._decompress(data[_HEAD.size : stored], count)
        numbers: _Numbers = np.frombuffer(into, _NUMBER[encoding])
        numbers[:] = np.frombuffer(top, np.uint8)
        for at in reversed(range(width - 1)):
            np.left_shift(numbers, 8, out=numbers)
            np.bitwise_or(numbers, np.frombuffer(data, np.uint8, count, stored + at * count), out=numbers)

    def _decompress(self, frame: memoryview | bytes, count: int) -> bytes:
        """A compressed plane of `count` bytes. Its length is looked at before memory is taken."""
        try:
            if zstandard.frame_content_size(frame) != count:
                raise BadChunk(f"a compressed plane that is not of {count} bytes")
            return self._decompressor.decompress(frame, max_output_size=count, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise BadChunk(f"a compressed plane that is none: {error}") from error


def _plane(numbers: _Numbers, at: int) -> memoryview:
    """Byte `at` of each number."""
    plane = np.empty(len(numbers), np.uint8)
    np.right_shift(numbers, 8 * at, out=plane, dtype=numbers.dtype, casting="unsafe")
    return plane.data
