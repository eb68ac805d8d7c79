"""Connections: handshake first, then control frames or chunks, and a table for the rest."""

from __future__ import annotations

import itertools

import pytest

from shared.errors import BadHeader, ProtocolError, Rejected, UnexpectedMessage
from shared.wire import messages as m
from shared.wire.codec import encode
from shared.wire.connection import (
    ChunkDone,
    ChunkStart,
    Connection,
    Event,
    LinkMessage,
    Numbered,
    Opened,
    State,
)
from shared.wire.framing import Frame, FrameKind, chunk_head, frame_bytes
from shared.wire.handshake import Dialler, Identity, Listener, Offer
from shared.wire.messages import Role

P = Identity("p1", Role.PREFILL, "a", 11)
MD = Identity("md1", Role.MAIN, "b", 12)
CONFIRM = frame_bytes(Frame(FrameKind.ACK, b""))


def pair(bulk: int = 0, theirs: Identity = MD) -> tuple[Connection, Connection]:
    dialler = Dialler(P, None, b"d" * 16, bulk=bulk)
    listener = Listener(theirs, None, b"l" * 16, lambda hello: Offer(5, 0))
    return Connection(dialler, max_chunk=1 << 12), Connection(listener, max_chunk=1 << 12)


def give(connection: Connection, data: bytes) -> list[Event]:
    """All events for these bytes; chunks go into memory made here."""
    found: list[Event] = []
    at = 0
    while True:
        while (event := connection.next_event()) is not None:
            found.append(event)
            if isinstance(event, ChunkStart):
                connection.receive_into(memoryview(bytearray(event.size)))
        if at == len(data):
            return found
        buffer = connection.get_buffer()
        count = min(len(buffer), len(data) - at)
        buffer[:count] = data[at : at + count]
        connection.buffer_updated(count)
        at += count


def opened(bulk: int = 0) -> tuple[Connection, Connection]:
    one, other = pair(bulk)
    give(other, one.take_output())
    give(one, other.take_output())
    [event] = give(other, one.take_output())
    assert isinstance(event, Opened)
    assert isinstance(give(one, CONFIRM)[0], Opened)
    return one, other


@pytest.mark.parametrize(("bulk", "state"), [(0, State.CONTROL), (2, State.BULK)])
def test_open_on_both_sides(bulk: int, state: State) -> None:
    one, other = opened(bulk)
    assert one.state is other.state is state
    assert one.agreed is not None
    assert one.agreed.bulk == bulk


def test_the_dialler_is_open_only_when_the_listener_has_said_something() -> None:
    one, other = pair()
    give(other, one.take_output())
    assert give(one, other.take_output()) == []
    assert one.state is State.HANDSHAKE
    assert one.agreed is None


def test_control_frames_become_events() -> None:
    one, _ = opened()
    message = Frame(FrameKind.MESSAGE, encode(m.Drain(True)), seq=1)
    ping = Frame(FrameKind.LINK, encode(m.Ping(5)), ack=3)
    assert give(one, frame_bytes(message) + frame_bytes(ping)) == [
        Numbered(message),
        LinkMessage(m.Ping(5), ping),
    ]


def test_chunks_become_a_start_and_an_end() -> None:
    one, _ = opened(bulk=1)
    chunk = m.KvChunk(b"t" * 16, 0, 0, 3, 0, 10, 0, 99)
    data = (chunk_head(encode(chunk), 10) + b"0123456789") * 2
    assert give(one, data) == [ChunkStart(chunk, 10), ChunkDone(chunk)] * 2
    assert one.chunk is None


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (encode(m.Drain(True)), 10),
        (encode(m.KvChunk(b"t" * 16, 0, 0, 3, 0, 11, 0, 99)), 10),
        (b"\xc1", 10),
    ],
)
def test_chunk_heads_that_cannot_be(header: bytes, size: int) -> None:
    one, _ = opened(bulk=1)
    with pytest.raises(BadHeader):
        give(one, chunk_head(header, size))


def sample(kind: FrameKind) -> bytes:
    """A right frame of a kind."""
    match kind:
        case FrameKind.HANDSHAKE:
            return frame_bytes(Frame(kind, encode(m.Proof(b""))))
        case FrameKind.LINK:
            return frame_bytes(Frame(kind, encode(m.Ping(1))))
        case FrameKind.CHUNK:
            return chunk_head(encode(m.KvChunk(b"", 0, 0, 0, 0, 1, 0, 0)), 1) + b"x"
        case FrameKind.ACK:
            return CONFIRM
        case _:
            return frame_bytes(Frame(kind, encode(m.Drain(True)), seq=1))


ALLOWED = {
    State.CONTROL: {FrameKind.MESSAGE, FrameKind.PART, FrameKind.LINK, FrameKind.ACK},
    State.BULK: {FrameKind.CHUNK, FrameKind.ACK},
}


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(ALLOWED, FrameKind)))
def test_every_kind_in_every_state_is_an_event_or_refused(state: State, kind: FrameKind) -> None:
    for side in opened(bulk=0 if state is State.CONTROL else 1):
        if kind in ALLOWED[state]:
            give(side, sample(kind))
        else:
            with pytest.raises(UnexpectedMessage):
                give(side, sample(kind))


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind is not FrameKind.HANDSHAKE])
def test_nothing_but_a_handshake_before_the_handshake(kind: FrameKind) -> None:
    for side in pair():
        with pytest.raises(UnexpectedMessage):
            give(side, sample(kind))


def test_a_link_frame_holds_a_link_message() -> None:
    one, _ = opened()
    with pytest.raises(BadHeader):
        give(one, frame_bytes(Frame(FrameKind.LINK, encode(m.Drain(True)))))


def test_last_words_are_the_refusal() -> None:
    one, other = pair(theirs=Identity("md1", Role.MAIN, "b", 12, "other"))
    give(other, one.take_output())
    with pytest.raises(Rejected):
        give(one, other.take_output())
    with pytest.raises(Rejected, match="fingerprint"):
        give(other, one.last_words())
    assert other.last_words() == b""


def test_a_protocol_error_leaves_no_last_words() -> None:
    one, _ = pair()
    with pytest.raises(ProtocolError):
        give(one, b"HTTP/1.1 400 Bad Request\r\n")
    assert one.last_words() == b""
