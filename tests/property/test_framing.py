"""The parser: any bytes either parse or raise a documented Remote error, and slicing never matters."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.errors import ProtocolError, Remote
from shared.wire.codec import check_payload, decode, encode
from shared.wire.framing import PREFIX_BYTES, Frame, FrameKind, FrameParser, chunk_head, frame_bytes
from tests.support.framing import Seen, feed, outcome
from tests.support.samples import MESSAGES

SMALL_KINDS = (FrameKind.HANDSHAKE, FrameKind.MESSAGE, FrameKind.PART, FrameKind.LINK, FrameKind.ACK)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One right frame of any kind."""
    kind = draw(st.sampled_from(list(FrameKind)))
    header = draw(st.binary(max_size=80))
    payload = draw(st.binary(min_size=1, max_size=300))
    if kind is FrameKind.CHUNK:
        return chunk_head(header, len(payload)) + payload
    if kind is FrameKind.ACK:
        header = b""
    if kind not in (FrameKind.MESSAGE, FrameKind.PART):
        payload = b""
    number = st.integers(0, 2**64 - 1)
    return frame_bytes(
        Frame(kind, header, payload, draw(number), draw(number), draw(st.integers(0, 2**32 - 1)))
    )


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Right frames, then damage: bytes overwritten, cut out or put in."""
    data = bytearray(b"".join(draw(st.lists(frames(), max_size=5))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["overwrite", "cut", "insert"])):
            case "overwrite":
                data[at : at + 2] = draw(st.binary(min_size=0, max_size=2))
            case "cut":
                del data[at : at + draw(st.integers(1, 40))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=40))
    return bytes(data)


@given(streams(), st.booleans(), st.lists(st.integers(1, 50), min_size=1, max_size=30))
@settings(max_examples=300)
@example(b"", False, [1])
@example(b"PD\x01\x06" + bytes(8), True, [1])
def test_slicing_never_matters(data: bytes, chunks: bool, sizes: list[int]) -> None:
    whole = outcome([data], chunks=chunks)
    single = outcome([data[i : i + 1] for i in range(len(data))], chunks=chunks)
    slices: list[bytes] = []
    at = 0
    while at < len(data):
        size = sizes[len(slices) % len(sizes)]
        slices.append(data[at : at + size])
        at += size
    sliced = outcome(slices, chunks=chunks)
    scattered = outcome(slices, chunks=chunks, places=True)
    scattered_whole = outcome([data], chunks=chunks, places=True)
    assert whole == single == sliced == scattered == scattered_whole


@given(st.lists(frames(), max_size=8), st.booleans())
@settings(max_examples=150)
def test_right_frames_come_out_as_they_went_in(parts: list[bytes], chunks: bool) -> None:
    seen, error = outcome([b"".join(parts)], chunks=chunks)
    assert error == ""
    assert [_again(one) for one in seen] == parts


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_headers_decode_or_raise_a_protocol_error(data: bytes) -> None:
    try:
        message = decode(data)
        check_payload(message, 0)
    except ProtocolError:
        return
    assert decode(encode(message)) == message


@given(st.sampled_from(MESSAGES), st.data())
@settings(max_examples=400)
def test_damaged_headers_decode_or_raise_a_protocol_error(message: object, data: st.DataObject) -> None:
    header = bytearray(encode(message))  # type: ignore[arg-type]
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(header))
    except ProtocolError:
        return


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES))
def test_a_prefix_alone_takes_no_memory(data: bytes) -> None:
    parser = FrameParser(max_chunk=1 << 12)
    try:
        feed(parser, data)
    except Remote:
        return
    assert len(parser.get_buffer()) <= 64 << 10


def _again(one: Seen) -> bytes:
    """What was seen, as it travels."""
    if isinstance(one, Frame):
        return frame_bytes(one)
    return chunk_head(one[0], len(one[1])) + one[1]
