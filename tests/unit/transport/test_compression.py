"""Chunks in fewer bytes: always the same bits back, smaller where it is used, and bad input is named."""

from __future__ import annotations

import random
import struct

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import BadChunk
from shared.transport.compression import AS_IS, PLANES_OF_2, PLANES_OF_4, encoding_for
from shared.transport.planes import PlaneCodec

ENCODINGS = (PLANES_OF_2, PLANES_OF_4)


def activations(count: int, encoding: int) -> bytes:
    """Numbers that are spread as KV is."""
    draw = random.Random(1)
    whole = struct.pack(f"<{count}f", *(draw.gauss(0, 1.5) for _ in range(count)))
    if encoding == PLANES_OF_4:
        return whole
    return b"".join(whole[at + 2 : at + 4] for at in range(0, len(whole), 4))


@pytest.mark.parametrize(("encoding", "least"), [(PLANES_OF_2, 1.4), (PLANES_OF_4, 1.15)])
def test_numbers_shrink_and_come_back(encoding: int, least: float) -> None:
    data = activations(65_536, encoding)
    codec = PlaneCodec()
    made = codec.encode(memoryview(data), encoding)
    assert made is not None
    assert len(data) / len(made) >= least
    into = bytearray(len(data))
    codec.decode(memoryview(made), encoding, memoryview(into))
    assert into == data


@settings(max_examples=200, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=600),
        st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=8), st.integers(0, 400)),
    ),
    encoding=st.sampled_from(ENCODINGS),
)
def test_any_bytes_come_back_or_are_left_as_they_are(data: bytes, encoding: int) -> None:
    codec = PlaneCodec()
    made = codec.encode(data, encoding)
    if made is None:
        return
    assert len(made) < len(data)
    into = bytearray(len(data))
    codec.decode(made, encoding, memoryview(into))
    assert into == data


@settings(max_examples=200, deadline=None)
@given(data=st.data(), encoding=st.sampled_from(ENCODINGS))
def test_damage_is_refused_or_caught_by_the_checksum_alone(data: st.DataObject, encoding: int) -> None:
    codec = PlaneCodec()
    made = codec.encode(bytes(4000), encoding)
    assert made is not None
    cut = made[: data.draw(st.integers(0, len(made)))]
    bad = bytearray(cut + data.draw(st.binary(max_size=20)))
    if bad:
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(0, 255))
    into = bytearray(4000)
    try:
        codec.decode(bytes(bad), encoding, memoryview(into))
    except BadChunk:
        assert into == bytes(4000)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoded_chunk_lies_as_the_wire_says(encoding: int) -> None:
    planes = [bytes([7] * 64), bytes(64), bytes(range(64))][-2 * encoding + 1 :]
    top = bytes([63, 191] * 32)
    data = b"".join(bytes(number) for number in zip(*planes, top, strict=True))
    made = PlaneCodec().encode(data, encoding)
    assert made is not None
    size = struct.unpack_from("<I", made)[0]
    assert zstandard.ZstdDecompressor().decompress(made[4 : 4 + size]) == top
    assert made[4 + size :] == b"".join(planes)


def test_a_plane_that_claims_to_be_huge_takes_no_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(100 << 20))
    made = struct.pack("<I", len(bomb)) + bomb + bytes(2000)
    with pytest.raises(BadChunk, match="not of 2000 bytes"):
        PlaneCodec().decode(made, PLANES_OF_2, memoryview(bytearray(4000)))


def test_what_is_not_of_whole_numbers_or_unknown_is_left_alone() -> None:
    codec = PlaneCodec()
    assert codec.encode(bytes(4001), PLANES_OF_2) is None
    assert codec.encode(b"", PLANES_OF_2) is None
    assert codec.encode(bytes(4000), AS_IS) is None
    with pytest.raises(BadChunk, match="encoding 9"):
        codec.decode(b"", 9, memoryview(bytearray(2)))
    assert [encoding_for(name) for name in ("bfloat16", "float32", "int8")] == [1, 2, 0]
