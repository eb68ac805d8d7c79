"""Whatever comes in: that connection ends with a documented error, and nothing else is harmed."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from shared.errors import Rejected
from shared.wire import messages as m
from shared.wire.codec import encode
from shared.wire.framing import Frame, FrameKind, chunk_head, frame_bytes
from shared.wire.handshake import Dialler, Identity
from shared.wire.messages import Role
from shared.wire.parts import Part
from tests.support.raw_peer import RawPeer
from tests.support.recording_core import chunk_of
from tests.support.samples import RID
from tests.support.wired import Node, joined, wired

KEY = b"k" * 32
STRANGER = Identity("stranger", Role.PREFILL, "a", 77)


@asynccontextmanager
async def mesh(key: bytes | None = None) -> AsyncIterator[tuple[Node, Node]]:
    """`md` listens and has a session with `p`; at the end both still work and neither was told of a loss."""
    p, md = Node("p", key=key), Node("md", Role.MAIN, key=key)
    async with wired(p, md):
        await joined(p, md, bulk=1)
        yield p, md
        p.send("md", m.Drain(True))
        p.offer("md", chunk_of(memoryview(b"still here")))
        await md.core.until(lambda: any(node == "p" for node, _, _ in md.core.messages))
        await md.core.until(lambda: any(right for _, _, right in md.core.chunks))
        assert [lost for lost in p.core.lost + md.core.lost if lost[0] != "stranger"] == []
        assert [event for event in md.core.events if event == ("resumed", "p")] == []


async def refused(node: Node, data: bytes) -> None:
    """Send bytes on a fresh connection; returns once the node has closed it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(data)
    try:
        async with asyncio.timeout(5):
            while await reader.read(1 << 16):
                pass
    except ConnectionError:
        pass
    writer.transport.abort()


async def failed(node: Node, other: str, times: int = 1) -> None:
    """Returns once dialling has failed so often."""
    for _ in range(500):
        if node.endpoint._dials[other].failures >= times:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{node.name} did not fail to dial {other} {times} times")


def prefix(kind: int, header: int, payload: int) -> bytes:
    return struct.pack("<2sBBII", b"PD", 1, kind, header, payload)


def numbered(message: m.Message, payload: bytes = b"", seq: int = 1, ack: int = 0) -> bytes:
    return frame_bytes(Frame(FrameKind.MESSAGE, encode(message), payload, seq, ack))


def part(offset: int, total: int) -> bytes:
    header = msgspec.msgpack.encode(Part(1, offset, 1, total))
    return frame_bytes(Frame(FrameKind.PART, header, b"x", seq=1))


HELLO = Dialler(STRANGER, None, b"n" * 16).hello


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: md\r\n\r\n", "bad_magic"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "bad_magic"),
        (b"\x80\x04\x95\x1c\x00", "bad_magic"),
        (b"PD\x02\x01" + bytes(8), "bad_version"),
        (prefix(0, 1, 1), "unknown_kind"),
        (prefix(200, 1, 1), "unknown_kind"),
        (prefix(1, 2**32 - 1, 0), "frame_too_large"),
        (prefix(2, 10, 2**32 - 1), "frame_too_large"),
        (prefix(6, 10, 2**31), "frame_too_large"),
        (frame_bytes(Frame(FrameKind.HANDSHAKE, b"\xc1")), "bad_header"),
        (frame_bytes(Frame(FrameKind.HANDSHAKE, b"\x92\x63\x01")), "unknown_kind"),
        (frame_bytes(Frame(FrameKind.HANDSHAKE, b"\x91" * 16000)), "bad_header"),
        (frame_bytes(Frame(FrameKind.HANDSHAKE, encode(m.Proof(b"")))), "unexpected_message"),
        (frame_bytes(Frame(FrameKind.HANDSHAKE, encode(m.Drain(True)))), "unexpected_message"),
        (numbered(m.Drain(True), seq=1), "unexpected_message"),
        (frame_bytes(Frame(FrameKind.LINK, encode(m.Ping(1)))), "unexpected_message"),
        (chunk_head(encode(m.KvChunk(b"", 0, 0, 0, 0, 4, 0, 0)), 4) + b"data", "unexpected_message"),
        (frame_bytes(Frame(FrameKind.HANDSHAKE, HELLO)) * 2, "unexpected_message"),
    ],
    ids=range(18),
)
async def test_a_stranger_with_bad_bytes(data: bytes, code: str) -> None:
    async with mesh() as (_, md):
        await refused(md, data)
        assert md.endpoint.counters[f"refused_{code}"] == 1


async def test_a_stranger_that_says_nothing_is_closed_in_time() -> None:
    async with mesh() as (_, md):
        hello = frame_bytes(Frame(FrameKind.HANDSHAKE, HELLO))
        await asyncio.gather(refused(md, b""), refused(md, b"PD"), refused(md, hello))


async def test_a_listener_that_never_answers_fails_in_time() -> None:
    p, md = Node("p"), Node("md")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, nobody reads
        async with wired(p, md):
            p.dial(md, port=silent.getsockname()[1])
            await failed(p, "md")
            assert p.core.sessions == []


@pytest.mark.parametrize("theirs", [None, b"x" * 32])
async def test_a_peer_with_another_key(theirs: bytes | None) -> None:
    async with mesh(KEY) as (_, md):
        with pytest.raises(Rejected, match="key"):
            await (await RawPeer.dial(md.port, STRANGER, theirs)).opened()
        other = Node("stranger", key=theirs)
        other.dial(md)
        await failed(other, "md", 2)
        assert other.core.sessions == []
        await other.endpoint.close()
        assert "stranger" not in md.endpoint.sessions()


async def test_a_forged_proof() -> None:
    async with mesh(KEY) as (_, md):
        dialler = Dialler(STRANGER, KEY, os.urandom(16))
        hello = frame_bytes(Frame(FrameKind.HANDSHAKE, dialler.hello))
        await refused(md, hello + frame_bytes(Frame(FrameKind.HANDSHAKE, encode(m.Proof(b"x" * 32)))))
        assert md.endpoint.counters["refused_unauthenticated"] == 1


@pytest.mark.parametrize(
    ("theirs", "field"),
    [
        (Identity("stranger", Role.RELAY, "a", 77, fingerprint="other weights"), "fingerprint"),
        (Identity("stranger", Role.RELAY, "a", 77, layout=b"L" * 16, layout_text="bf16"), "layout"),
        (Identity("stranger", Role.ROUTER, "a", 77, template="other template"), "template"),
        (Identity("md", Role.RELAY, "a", 77), "node"),
    ],
)
async def test_what_does_not_fit_is_named_on_both_sides(theirs: Identity, field: str) -> None:
    async with mesh() as (_, md):
        with pytest.raises(Rejected) as told:
            await (await RawPeer.dial(md.port, theirs)).opened()
        assert told.value.field == field
        assert md.endpoint.counters["refused_rejected"] == 1


async def test_a_refused_pair_tries_again_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    p, md = Node("p", fingerprint="ours"), Node("md", fingerprint="theirs")
    async with wired(p, md):
        await md.listen()
        p.dial(md)
        await failed(p, "md", 5)
    said = capsys.readouterr().out
    assert said.count("cannot connect") == 1
    assert said.count("connection refused") == 1
    assert "ours" in said
    assert "theirs" in said


async def test_a_node_that_answers_with_another_name() -> None:
    p, md = Node("p"), Node("md")
    async with wired(p, md):
        port = await md.listen()
        p.endpoint.dial("other", "127.0.0.1", port)
        await failed(p, "other")
        assert p.core.sessions == []


CHUNK = m.KvChunk(b"", 0, 0, 0, 0, 4, 0, 0)
IN_SESSION: list[tuple[bytes, str]] = [
    (frame_bytes(Frame(FrameKind.MESSAGE, b"\xc1", seq=1)), "bad_header"),
    (frame_bytes(Frame(FrameKind.MESSAGE, b"\x92\x63\x01", seq=1)), "unknown_kind"),
    (numbered(m.Resume(RID, 1), bytes(4)), "bad_header"),
    (numbered(m.Feed(RID, 1, 0, m.Do.HOLD), bytes(3)), "bad_header"),
    (numbered(m.Resume(RID, 1), seq=2), "sequence_gap"),
    (numbered(m.Resume(RID, 1), seq=2**63), "sequence_gap"),
    (numbered(m.Resume(RID, 1), ack=9), "protocol"),
    (numbered(m.Ping(1), seq=1), "unexpected_message"),
    (numbered(CHUNK, bytes(4)), "unexpected_message"),
    (
        frame_bytes(Frame(FrameKind.PART, b"\x94\x01\x00\x01\xce\xff\xff\xff\xff", b"x", seq=1)),
        "frame_too_large",
    ),
    (frame_bytes(Frame(FrameKind.PART, b"\x94\x01\x05\x01\x09", b"x", seq=1)), "sequence_gap"),
    (frame_bytes(Frame(FrameKind.LINK, encode(m.Drain(True)))), "bad_header"),
    (frame_bytes(Frame(FrameKind.HANDSHAKE, HELLO)), "unexpected_message"),
    (chunk_head(encode(m.KvChunk(b"", 0, 0, 0, 0, 4, 0, 0)), 4) + b"data", "unexpected_message"),
    (b"junk", "bad_magic"),
]


@pytest.mark.parametrize(("data", "code"), IN_SESSION, ids=range(len(IN_SESSION)))
async def test_a_member_with_bad_frames(data: bytes, code: str) -> None:
    """Its connection ends; where the same comes again its session ends, once; all others go on."""
    async with mesh() as (_, md):
        peer = await (await RawPeer.dial(md.port, STRANGER)).opened()
        assert peer.agreed is not None
        peer.send(data)
        await peer.until_closed()
        assert md.endpoint.counters[f"refused_{code}"] == 1
        assert md.core.lost == []
        again = await (
            await RawPeer.dial(md.port, STRANGER, session=peer.agreed.session, peer_incarnation=1)
        ).opened()
        again.send(data)
        await again.until_closed()
        await md.core.until(lambda: [node for node, _ in md.core.lost] == ["stranger"])
        assert "no connection" not in md.core.lost[0][1]  # at once, not when the lease was over
        await peer.close()
        await again.close()


BAD_CHUNKS: list[tuple[bytes, str]] = [
    (chunk_head(encode(m.Drain(True)), 4) + b"data", "bad_header"),
    (chunk_head(encode(m.KvChunk(b"", 0, 0, 0, 0, 5, 0, 0)), 4) + b"data", "bad_header"),
    (chunk_head(b"\xc1", 4) + b"data", "bad_header"),
    (chunk_head(encode(m.KvChunk(b"", 0, 0, 0, 0, 4, 99, 0)), 4) + b"data", "bad_chunk"),
    (chunk_head(encode(m.KvChunk(b"", 0, 0, 0, 0, 0, 0, 0)), 0), "bad_header"),
    (prefix(6, 40, (256 << 10) + 1), "frame_too_large"),
    (numbered(m.Drain(True), seq=1), "unexpected_message"),
    (frame_bytes(Frame(FrameKind.LINK, encode(m.Ping(1)))), "unexpected_message"),
]


@pytest.mark.parametrize(("data", "code"), BAD_CHUNKS, ids=range(len(BAD_CHUNKS)))
async def test_a_member_with_bad_chunks(data: bytes, code: str) -> None:
    """The bulk connection ends, the session goes on."""
    async with mesh() as (_, md):
        control = await (await RawPeer.dial(md.port, STRANGER)).opened()
        assert control.agreed is not None
        bulk = await (
            await RawPeer.dial(md.port, STRANGER, bulk=1, session=control.agreed.session, peer_incarnation=1)
        ).opened()
        bulk.send(data)
        await bulk.until_closed()
        assert md.endpoint.counters[f"refused_{code}"] == 1
        control.send(numbered(m.Resume(RID, 5), seq=1))
        await md.core.until(lambda: ("stranger", m.Resume(RID, 5), b"") in md.core.messages)
        assert md.core.lost == []
        await bulk.close()
        await control.close()


async def test_a_bulk_connection_of_no_session() -> None:
    async with mesh() as (_, md):
        for session in (0, 12345):
            with pytest.raises(Rejected, match="session"):
                await (await RawPeer.dial(md.port, STRANGER, bulk=1, session=session)).opened()


async def test_a_stranger_that_names_anothers_session_does_not_get_it() -> None:
    async with mesh(KEY) as (p, md):
        number = md.endpoint._book.peers["p"].session.number
        thief = Identity("p", Role.PREFILL, "a", 1)
        with pytest.raises(Rejected, match="key"):
            await (await RawPeer.dial(md.port, thief, None, session=number, peer_incarnation=1)).opened()
        assert p.endpoint.sessions() == ["md"]


async def test_many_strangers_at_once_are_bounded() -> None:
    async with mesh() as (_, md):
        writers = []
        for _ in range(300):
            _, writer = await asyncio.open_connection("127.0.0.1", md.port)
            writers.append(writer)
        assert len(md.endpoint._inbound.streams) <= 300
        pending = [stream for stream in md.endpoint._inbound.streams if not stream.opened.done()]
        assert len(pending) <= 256
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)
