"""Compressed chunks over sockets: the same bits, in order, few taken early, and bad ones harm nothing."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from shared.transport.compression import PLANES_OF_2, READS
from shared.transport.line import LineSpec
from shared.transport.planes import PlaneCodec
from shared.transport.security import TlsFiles
from shared.wire.codec import encode
from shared.wire.framing import chunk_head
from shared.wire.handshake import Identity
from shared.wire.messages import KvChunk, Role
from tests.support.fault_proxy import FaultProxy
from tests.support.raw_peer import RawPeer
from tests.support.recording_core import TICKET, chunk_of
from tests.support.resuming_core import ReceivingCore, SendingCore
from tests.support.wired import Node, joined, wired

FILES = Path(__file__).parents[2] / "golden" / "tls"
TLS = TlsFiles(*(str(FILES / name) for name in ("mesh.pem", "mesh.key", "mesh-ca.pem")))
ON = LineSpec("wan", ("a", "b"), compress="on")


def kv(size: int, seed: int = 1) -> bytes:
    """bf16 numbers as KV has them."""
    draw = random.Random(seed)
    some = b"".join(struct.pack("<f", draw.gauss(0, 1.5))[2:] for _ in range(4096))
    return (some * (size // len(some) + 1))[:size]


def pair(
    sender: Callable[[], SendingCore] | None = None,
    receiver: ReceivingCore | None = None,
    *,
    tls: TlsFiles | None = None,
    line: LineSpec = ON,
) -> tuple[Node, Node]:
    p = Node("p", lines=[line], tls=tls, core=sender() if sender else None, encoding=PLANES_OF_2)
    md = Node("md", Role.MAIN, datacenter="b", lines=[line], tls=tls, core=receiver, encoding=PLANES_OF_2)
    return p, md


@pytest.mark.parametrize("tls", [None, TLS], ids=["plain", "tls"])
async def test_the_same_bits_in_fewer_bytes(tls: TlsFiles | None) -> None:
    data = kv(3_000_000)
    receiver = ReceivingCore(len(data), 50_000)
    p, md = pair(lambda: SendingCore(data, 50_000), receiver, tls=tls)
    async with wired(p, md):
        await joined(p, md, bulk=2)
        await receiver.until(lambda: not receiver.missing)
        await p.core.until(lambda: len(p.core.written) == 60)
    assert receiver.memory == data
    assert all(in_place and right for _, in_place, right in receiver.chunks)
    assert {chunk.encoding for chunk, _, _ in receiver.chunks} == {PLANES_OF_2}
    sent, received = p.endpoint.counters, md.endpoint.counters
    assert sent["encoded_bytes_before"] == len(data)
    assert sent["chunk_bytes_out"] == sent["encoded_bytes_after"] == received["chunk_bytes_in"]
    assert sent["encoded_bytes_before"] >= 1.3 * sent["encoded_bytes_after"]
    assert sent["encode_microseconds"] > 0
    assert p.endpoint.lines()["wan"].gain == pytest.approx(len(data) / sent["chunk_bytes_out"])
    assert received["decode_microseconds"] > 0


async def test_what_does_not_shrink_goes_as_it_is() -> None:
    data = random.Random(2).randbytes(400_000)
    receiver = ReceivingCore(len(data), 50_000)
    p, md = pair(lambda: SendingCore(data, 50_000), receiver)
    async with wired(p, md):
        await joined(p, md, bulk=1)
        await receiver.until(lambda: not receiver.missing)
    assert receiver.memory == data
    assert {chunk.encoding for chunk, _, _ in receiver.chunks} == {0}
    assert p.endpoint.lines()["wan"].gain == 1.0


@pytest.mark.parametrize(
    "line", [LineSpec("wan", ("a", "b"), compress="off"), LineSpec("wan", ("a", "b"), compress="auto")]
)
async def test_no_compression_where_the_line_says_so_or_nothing_is_known_of_it(line: LineSpec) -> None:
    p, md = pair(line=line)
    async with wired(p, md):
        await joined(p, md, bulk=1)
        p.offer("md", chunk_of(memoryview(kv(50_000))))
        await md.core.until(lambda: bool(md.core.chunks))
    assert md.core.chunks[0][0].encoding == 0
    assert p.endpoint.counters["encode_microseconds"] == 0


async def test_a_slow_line_is_compressed_by_itself() -> None:
    data = kv(2_000_000)
    receiver = ReceivingCore(len(data), 50_000)
    line = LineSpec("wan", ("a", "b"), rate=4e6, compress="auto")
    p, md = pair(lambda: SendingCore(data, 50_000), receiver, line=line)
    async with wired(p, md):
        await joined(p, md, bulk=1)
        await receiver.until(lambda: not receiver.missing)
    assert receiver.memory == data
    assert p.endpoint.counters["encoded_bytes_before"] >= 0.8 * len(data)


async def test_a_peer_that_does_not_decode_gets_chunks_as_they_are() -> None:
    p, _ = pair()
    identity = Identity("old", Role.MAIN, "b", 5)
    async with wired(p):
        await p.listen()
        control = await (await RawPeer.dial(p.port, identity)).opened()
        assert control.agreed is not None
        assert control.agreed.encodings == READS
        bulk = await (
            await RawPeer.dial(p.port, identity, bulk=1, session=control.agreed.session, peer_incarnation=1)
        ).opened()
        p.offer("old", chunk_of(memoryview(kv(50_000))))
        await p.core.until(lambda: bool(p.core.written))
        assert p.endpoint.counters["chunk_bytes_out"] == 50_000
        await bulk.close()
        await control.close()


async def test_few_chunks_are_taken_before_the_socket_wants_them() -> None:
    data = kv(1 << 18)
    p, md = pair()
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        await joined(p, md, port=proxy.port, bulk=1)
        p.offer("md", chunk_of(memoryview(data), key=0))
        await md.core.until(lambda: bool(md.core.chunks))
        proxy.freeze()
        p.offer("md", *(chunk_of(memoryview(data), key=key) for key in range(1, 200)))
        await p.core.until(lambda: len(p.core.written) > 3)
        left = len(p.core.outgoing["md"])
        taken = 200 - left
        assert taken - len(p.core.written) <= 1 + 3  # in the socket; for two threads and the next write
        proxy.heal()


@pytest.mark.parametrize("tls", [None, TLS], ids=["plain", "tls"])
async def test_a_transfer_over_cuts(tls: TlsFiles | None) -> None:
    data = kv(12_000_000)
    receiver, sender = ReceivingCore(len(data), 50_000), SendingCore(data, 50_000)
    p, md = pair(lambda: sender, receiver, tls=tls)
    draw = random.Random(5)
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        proxy.cut_after(700_000)
        await joined(p, md, port=proxy.port, bulk=2)
        cuts = 0
        while receiver.missing:
            if proxy.cut_at is None and cuts < 6:
                cuts += 1
                proxy.cut_after(draw.randrange(300_000, 1_000_000))
            count = len(receiver.chunks)
            await receiver.until(lambda seen=count: len(receiver.chunks) > seen)  # type: ignore[misc]
        await sender.until(lambda: not sender.out)
        assert cuts >= 4
    assert receiver.memory == data
    assert receiver.landing == set()
    assert all(right for _, in_place, right in receiver.chunks if in_place)
    assert receiver.lost == sender.lost == []


async def test_nothing_is_left_of_chunks_that_were_being_encoded_when_the_session_ended() -> None:
    data = kv(1 << 18)
    p, md = pair()
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        await joined(p, md, port=proxy.port, bulk=1)
        p.offer("md", chunk_of(memoryview(data), key=0))
        await md.core.until(lambda: bool(md.core.chunks))
        proxy.freeze()
        p.offer("md", *(chunk_of(memoryview(data), key=key) for key in range(1, 60)))
        await p.core.until(lambda: len(p.core.written) > 1)
        await md.endpoint.close()
        proxy.refuse()
        proxy.heal()
        await p.core.until(lambda: bool(p.core.lost))
        taken = 60 - len(p.core.outgoing["md"])
        await p.core.until(lambda: len(p.core.written) == taken)
        assert len({key for key, _ in p.core.written}) == taken


def encoded(data: bytes) -> bytes:
    made = PlaneCodec().encode(data, PLANES_OF_2)
    assert made is not None
    return made


def head(data: bytes, *, block: int = 0, length: int | None = None, encoding: int = PLANES_OF_2) -> KvChunk:
    size = len(data) if length is None else length
    return KvChunk(TICKET, 0, 0, block, 0, size, encoding, xxhash.xxh3_64_intdigest(data))


async def raw(md: Node) -> tuple[RawPeer, RawPeer]:
    identity = Identity("p", Role.PREFILL, "a", 7, encodings=READS)
    control = await (await RawPeer.dial(md.port, identity)).opened()
    assert control.agreed is not None
    bulk = await RawPeer.dial(md.port, identity, bulk=1, session=control.agreed.session, peer_incarnation=1)
    return control, await bulk.opened()


async def test_damaged_chunks_are_handed_on_as_wrong_and_the_next_one_is_right() -> None:
    data = kv(60_000)
    good = encoded(data)
    size = struct.unpack_from("<I", good)[0]
    bad = [
        good[:-1],  # cut short
        struct.pack("<I", size + 7) + good[4:],  # lies about its plane
        struct.pack("<I", 0xFFFFFFFF) + good[4:],
        good[:4] + bytes(size) + good[4 + size :],  # no zstd frame
        good[:20] + bytes([good[20] ^ 255]) + good[21:],
        good[:-5] + bytes([good[-5] ^ 1]) + good[-4:],  # a stored byte: the checksum alone knows
        encoded(kv(30_000)),  # of another length
    ]
    _, md = pair()
    memory = [bytearray(60_000) for _ in range(len(bad) + 1)]
    md.core.buffers = lambda chunk: memoryview(memory[chunk.block])
    async with wired(md):
        await md.listen()
        control, bulk = await raw(md)
        for at, body in enumerate([*bad, good]):
            bulk.send(chunk_head(encode(head(data, block=at)), len(body)) + body)
        await md.core.until(lambda: len(md.core.chunks) == len(bad) + 1)
        rights = {chunk.block: right for chunk, _, right in md.core.chunks}
        assert rights == {at: at == len(bad) for at in range(len(bad) + 1)}
        assert memory[-1] == data
        assert md.endpoint.counters["chunks_undecodable"] >= 5
        assert not md.core.broken
        await bulk.close()
        await control.close()


@pytest.mark.parametrize(
    ("length", "encoding", "size"),
    [(60_000, 9, 30_000), ((256 << 10) + 2, 1, 1000), (60_001, 1, 30_000), (60_000, 1, 60_000), (30, 1, 31)],
    ids=["unknown", "a bomb", "no whole numbers", "not smaller", "larger"],
)
async def test_a_chunk_that_cannot_be_one_ends_its_connection(length: int, encoding: int, size: int) -> None:
    _, md = pair()
    async with wired(md):
        await md.listen()
        control, bulk = await raw(md)
        body = bytes(size)
        bulk.send(chunk_head(encode(head(body, length=length, encoding=encoding)), size) + body)
        await bulk.until_closed()
        assert md.endpoint.counters["refused_bad_chunk"] == 1
        assert not md.core.chunks
        await bulk.close()
        await control.close()


@pytest.mark.parametrize("lacks", ["p", "md"])
async def test_without_a_codec_on_either_side_chunks_come_as_they_are(lacks: str) -> None:
    data = kv(200_000)
    receiver = ReceivingCore(len(data), 50_000)
    p = Node("p", lines=[ON], core=SendingCore(data, 50_000), encoding=PLANES_OF_2, codec=lacks != "p")
    md = Node("md", Role.MAIN, datacenter="b", lines=[ON], core=receiver, codec=lacks != "md")
    async with wired(p, md):
        await joined(p, md, bulk=1)
        await receiver.until(lambda: not receiver.missing)
    assert receiver.memory == data
    assert {chunk.encoding for chunk, _, _ in receiver.chunks} == {0}


async def test_an_encoded_chunk_to_a_side_without_a_codec_ends_its_connection() -> None:
    md = Node("md", Role.MAIN, datacenter="b", codec=False)
    async with wired(md):
        await md.listen()
        control, bulk = await raw(md)
        assert control.agreed is not None
        assert control.agreed.encodings == 0
        body = encoded(kv(60_000))
        bulk.send(chunk_head(encode(head(kv(60_000))), len(body)) + body)
        await bulk.until_closed()
        assert md.endpoint.counters["refused_bad_chunk"] == 1
        assert not md.core.chunks
        await bulk.close()
        await control.close()


async def test_a_chunk_that_nobody_wants_is_not_decoded() -> None:
    data = kv(60_000)
    _, md = pair()
    async with wired(md):
        await md.listen()
        control, bulk = await raw(md)
        body = encoded(data)
        bulk.send(chunk_head(encode(head(data)), len(body)) + body)
        await md.core.until(lambda: bool(md.core.chunks))
        [(_, in_place, _)] = md.core.chunks
        assert not in_place
        assert md.endpoint.counters["decode_microseconds"] == 0
        assert md.endpoint.counters["chunk_bytes_scratch"] == len(body)
        await bulk.close()
        await control.close()
