"""Frames: golden bytes, limits before memory, chunks into given memory."""

from __future__ import annotations

import struct

import pytest

from shared.errors import (
    BadHeader,
    BadMagic,
    BadVersion,
    FrameTooLarge,
    InvariantBroken,
    ProtocolError,
    UnknownKind,
)
from shared.wire.framing import (
    HEADER_LIMIT,
    PART_BYTES,
    PREFIX_BYTES,
    ChunkEnd,
    ChunkHead,
    Frame,
    FrameKind,
    FrameParser,
    chunk_head,
    frame_bytes,
)
from tests.support.framing import feed, outcome


def prefix(kind: int, header: int, payload: int, magic: bytes = b"PD", version: int = 1) -> bytes:
    return struct.pack("<2sBBII", magic, version, kind, header, payload)


def test_golden_frames() -> None:
    message = Frame(FrameKind.MESSAGE, b"\x92\x05\x01", b"\x07\0\0\0", seq=5, ack=4, waited_ms=3)
    assert frame_bytes(message).hex() == (
        "504401020300000004000000050000000000000004000000000000000300000092050107000000"
    )
    assert frame_bytes(Frame(FrameKind.HANDSHAKE, b"\x01")).hex() == "50440101010000000000000001"
    assert chunk_head(b"\x02", 9).hex() == "50440106010000000900000002"


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind is not FrameKind.CHUNK])
def test_round_trip(kind: FrameKind) -> None:
    numbered = kind in (FrameKind.MESSAGE, FrameKind.PART)
    frame = Frame(
        kind,
        b"" if kind is FrameKind.ACK else b"header",
        b"payload" if numbered else b"",
        seq=2**63 if numbered else 0,
        ack=0 if kind is FrameKind.HANDSHAKE else 2**64 - 1,
        waited_ms=2**32 - 1 if numbered else 0,
    )
    assert feed(FrameParser(max_chunk=1), frame_bytes(frame) * 3) == [frame] * 3


def test_a_wait_longer_than_the_field_is_the_longest() -> None:
    frame = Frame(FrameKind.MESSAGE, b"h", waited_ms=2**40)
    [seen] = feed(FrameParser(max_chunk=1), frame_bytes(frame))
    assert isinstance(seen, Frame)
    assert seen.waited_ms == 2**32 - 1


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"G", BadMagic),
        (b"PX", BadMagic),
        (b"GET / HTTP/1.1\r\n\r\n", BadMagic),
        (prefix(2, 1, 1, magic=b"DP"), BadMagic),
        (prefix(2, 1, 1, version=2), BadVersion),
        (prefix(0, 1, 1), UnknownKind),
        (prefix(7, 1, 1), UnknownKind),
        (prefix(1, PART_BYTES + 1, 0), FrameTooLarge),
        (prefix(1, 1, 1), FrameTooLarge),
        (prefix(2, 2**32 - 1, 0), FrameTooLarge),
        (prefix(2, 0, 2**32 - 1), FrameTooLarge),
        (prefix(2, PART_BYTES, PART_BYTES), FrameTooLarge),
        (prefix(3, HEADER_LIMIT + 1, 1), FrameTooLarge),
        (prefix(4, HEADER_LIMIT + 1, 0), FrameTooLarge),
        (prefix(5, 1, 0), FrameTooLarge),
        (prefix(6, 10, (1 << 12) + 1), FrameTooLarge),
        (prefix(6, 10, 2**32 - 1), FrameTooLarge),
        (prefix(6, 10, 0), BadHeader),
    ],
    ids=range(18),
)
def test_refused_from_the_prefix_alone(data: bytes, error: type[ProtocolError]) -> None:
    parser = FrameParser(max_chunk=1 << 12)
    with pytest.raises(error):
        feed(parser, data)
    assert parser.get_buffer().nbytes <= 64 << 10  # nothing was taken for what the prefix claimed


def test_a_chunk_goes_into_the_memory_that_is_given() -> None:
    parser = FrameParser(max_chunk=1 << 12)
    parser.expect_chunks()
    payload = bytes(range(256)) * 8
    block = bytearray(4096)
    head = chunk_head(b"header", len(payload))
    buffer = parser.get_buffer()
    early = 20
    buffer[: len(head) + early] = head + payload[:early]
    parser.buffer_updated(len(head) + early)
    assert parser.next_event() == ChunkHead(b"header", len(payload))
    parser.receive_into(memoryview(block)[100 : 100 + len(payload)])
    assert parser.in_chunk
    rest = parser.get_buffer()
    assert rest.obj is block
    assert len(rest) == len(payload) - early  # nothing of the next frame can land in the block
    rest[:] = payload[early:]
    assert parser.next_event() is None
    parser.buffer_updated(len(rest))
    assert parser.next_event() == ChunkEnd()
    assert block[100 : 100 + len(payload)] == payload
    assert not any(block[:100])
    assert not any(block[100 + len(payload) :])
    assert parser.between_frames


def test_a_chunks_end_and_the_next_head_by_one_read() -> None:
    parser = FrameParser(max_chunk=1 << 12)
    parser.expect_chunks()
    blocks = [bytearray(2000), bytearray(3000)]
    heads = [chunk_head(b"one", 2000), chunk_head(b"two", 3000)]
    [buffer] = parser.get_buffers()
    buffer[: len(heads[0])] = heads[0]
    parser.buffer_updated(len(heads[0]))
    assert parser.next_event() == ChunkHead(b"one", 2000)
    assert not parser.receive_into(memoryview(blocks[0]))
    rest, ahead = parser.get_buffers()
    assert (rest.obj, len(rest)) == (blocks[0], 2000)
    beyond = heads[1] + b"2" * 7
    rest[:], ahead[: len(beyond)] = b"1" * 2000, beyond
    assert parser.buffer_updated(2000 + len(beyond))
    assert parser.next_event() == ChunkEnd()
    assert parser.next_event() == ChunkHead(b"two", 3000)
    assert not parser.receive_into(memoryview(blocks[1]))
    rest, _ = parser.get_buffers()
    assert (rest.obj, len(rest)) == (blocks[1], 2993)
    assert blocks == [b"1" * 2000, b"2" * 7 + bytes(2993)]


def test_memory_for_a_chunk_must_be_given_once_and_exactly() -> None:
    parser = FrameParser(max_chunk=1 << 12)
    with pytest.raises(InvariantBroken):
        parser.receive_into(memoryview(bytearray(4)))
    data = chunk_head(b"h", 4)
    parser.get_buffer()[: len(data)] = data
    parser.buffer_updated(len(data))
    assert parser.next_event() == ChunkHead(b"h", 4)
    with pytest.raises(InvariantBroken):
        parser.next_event()
    with pytest.raises(InvariantBroken):
        parser.receive_into(memoryview(bytearray(5)))


def test_between_frames_only_where_nothing_is_cut() -> None:
    parser = FrameParser(max_chunk=1 << 12)
    data = frame_bytes(Frame(FrameKind.LINK, b"header"))
    for count in range(1, len(data)):
        feed(parser, data[count - 1 : count])
        assert not parser.between_frames
    feed(parser, data[-1:])
    assert parser.between_frames


def test_many_small_frames_and_large_ones_through_a_small_buffer() -> None:
    frames = [
        Frame(FrameKind.MESSAGE, b"h" * n, b"p" * (PART_BYTES - n), n, n, n) for n in range(0, 9000, 37)
    ]
    data = b"".join(map(frame_bytes, frames))
    assert len(data) > 1 << 21
    assert outcome([data], chunks=False) == (frames, "")
    assert outcome([data], chunks=True) == (frames, "")


def test_prefix_is_twelve_bytes() -> None:
    assert PREFIX_BYTES == 12
