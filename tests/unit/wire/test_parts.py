"""Parts: cut and joined, and every wrong part refused before memory is taken."""

from __future__ import annotations

import msgspec
import pytest

from shared.errors import BadHeader, FrameTooLarge, ProtocolError, SequenceGap
from shared.wire.framing import PART_BYTES
from shared.wire.parts import MOST_OPEN, Part, PartJoiner, cut


def part(stream: int, offset: int, header: int, total: int) -> bytes:
    return msgspec.msgpack.encode(Part(stream, offset, header, total))


@pytest.mark.parametrize("payload", [1, PART_BYTES - 3, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES + 7])
def test_joined_as_cut(payload: int) -> None:
    header, data = b"abc", bytes(range(256)) * (payload // 256 + 1)
    joiner = PartJoiner(1 << 20)
    found = [joiner.add(*one) for one in cut(1, header, data[:payload])]
    assert found[-1] == (header, data[:payload])
    assert joiner.held == 0


def test_a_header_may_span_parts() -> None:
    header = bytes(3 * PART_BYTES)
    joiner = PartJoiner(1 << 20)
    assert [joiner.add(*one) for one in cut(1, header, b"x")][-1] == (header, b"x")


def test_interleaved_messages() -> None:
    one, two = list(cut(1, b"a", bytes(40_000))), list(cut(2, b"b", bytes(40_000)))
    joiner = PartJoiner(1 << 20)
    found = [joiner.add(*piece) for pair in zip(one, two, strict=True) for piece in pair]
    assert [whole[0] for whole in found if whole] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("header", "payload", "error"),
    [
        (b"\xc1", b"x", BadHeader),
        (part(1, 0, -1, 10), b"x", BadHeader),
        (part(1, 0, 1, 1001), b"x", FrameTooLarge),
        (part(1, 0, 11, 10), b"x", FrameTooLarge),
        (part(1, 5, 1, 10), b"x", SequenceGap),
        (part(1, 0, 1, 10), b"", BadHeader),
        (part(1, 0, 1, 10), b"x" * 11, BadHeader),
    ],
    ids=range(7),
)
def test_a_first_part_that_cannot_be(header: bytes, payload: bytes, error: type[ProtocolError]) -> None:
    joiner = PartJoiner(1000)
    with pytest.raises(error):
        joiner.add(header, payload)
    assert joiner.held == 0


def test_later_parts_must_agree_with_the_first() -> None:
    joiner = PartJoiner(1000)
    joiner.add(part(1, 0, 1, 10), b"xy")
    with pytest.raises(BadHeader):
        joiner.add(part(1, 2, 1, 11), b"z")
    with pytest.raises(SequenceGap):
        joiner.add(part(1, 0, 1, 10), b"xy")


def test_no_more_than_a_few_at_once() -> None:
    joiner = PartJoiner(1000)
    for stream in range(MOST_OPEN):
        joiner.add(part(stream, 0, 1, 10), b"x")
    with pytest.raises(FrameTooLarge):
        joiner.add(part(MOST_OPEN, 0, 1, 10), b"x")
    assert joiner.held == MOST_OPEN
