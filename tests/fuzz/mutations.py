"""Bytes made from bytes: small damage of the kinds that parsers stumble over. `random` decides everything."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

_SIZES: tuple[int, ...] = (
    0,
    1,
    11,
    12,
    13,
    32,
    127,
    128,
    255,
    256,
    1023,
    1024,
    4095,
    4096,
    16383,
    16384,
    16385,
    65535,
    65536,
)
_SIZES += (1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_TOKENS = (
    b"PD\x01",
    b"\x90",  # msgpack: empty array, arrays, maps, nil, bin, str, ints and floats of all sizes
    b"\xdc\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\x80",
    b"\xde\x00\x01",
    b"\xc0",
    b"\xc4\x10",
    b"\xc6\xff\xff\xff\xff",
    b"\xd9\xff",
    b"\xa1\xff",
    b"\xcf" + b"\xff" * 8,
    b"\xd3" + b"\x80" + bytes(7),
    b"\xcb\x7f\xf8" + bytes(6),
    b"\xca\xff\x80\x00\x00",
    b"\xc7\x05\x01hello",
)
MOST = 1 << 13
"""Bytes of an input at most."""


def mutate(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """One to eight changes of `data`; `others` are inputs to take pieces of."""
    made = bytearray(data)
    for _ in range(1 << draw.randrange(4)):
        draw.choice(_WAYS)(made, others, draw)
    return bytes(made[:MOST])


def _flip(made: bytearray, _: Sequence[bytes], draw: random.Random) -> None:
    if made:
        made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)


def _overwrite(made: bytearray, _: Sequence[bytes], draw: random.Random) -> None:
    if made:
        made[draw.randrange(len(made))] = draw.randrange(256)


def _cut(made: bytearray, _: Sequence[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(made) + 1)
    del made[at : at + draw.choice((1, 2, 4, 8, 30, 200))]


def _end(made: bytearray, _: Sequence[bytes], draw: random.Random) -> None:
    del made[draw.randrange(len(made) + 1) :]


def _repeat(made: bytearray, _: Sequence[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(made) + 1)
    made[at:at] = made[at : at + draw.randrange(1, 200)]


def _size(made: bytearray, _: Sequence[bytes], draw: random.Random) -> None:
    """A number of four bytes, as a frame's lengths are, or of eight, as its seq and ack."""
    at = draw.choice((4, 8, draw.randrange(len(made) + 1)))
    number = max(0, draw.choice(_SIZES) + draw.choice((-1, 0, 0, 1)))
    packed = struct.pack("<Q", number) if draw.random() < 0.3 else struct.pack("<I", number & 0xFFFFFFFF)
    made[at : at + len(packed)] = packed


def _token(made: bytearray, _: Sequence[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(made) + 1)
    token = draw.choice(_TOKENS)
    made[at : at + draw.choice((0, 1, len(token)))] = token


def _splice(made: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    """A piece of another input, in the middle or in place of the end."""
    other = draw.choice(others) if others else b""
    first = draw.randrange(len(other) + 1)
    piece = other[first : draw.randrange(first, len(other) + 1)]
    at = draw.randrange(len(made) + 1)
    made[at : (at if draw.random() < 0.5 else len(made))] = piece


_WAYS: tuple[Callable[[bytearray, Sequence[bytes], random.Random], None], ...] = (
    _flip,
    _overwrite,
    _cut,
    _end,
    _repeat,
    _size,
    _token,
    _splice,
)
