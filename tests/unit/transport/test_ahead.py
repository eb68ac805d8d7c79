"""Chunks taken early leave in order, and what is being decoded when a session ends is given up once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

import xxhash

from shared.policy.compression import CompressionGauge
from shared.transport.ahead import Ahead
from shared.transport.codec_threads import CodecThreads, Decoded, Encoded
from shared.transport.compression import PLANES_OF_2
from shared.transport.intake import Intake
from shared.transport.planes import PlaneCodec
from shared.transport.tcp import Stream
from shared.wire.connection import ChunkDone, ChunkStart, Connection
from shared.wire.handshake import Dialler, Identity
from shared.wire.messages import KvChunk, Role
from tests.support.recording_core import TICKET, RecordingCore, chunk_of


class ByHand(CodecThreads):
    """Work is done when a test says so."""

    def __init__(self) -> None:
        super().__init__(PlaneCodec, 2, Counter())
        self.encodes: list[asyncio.Future[Encoded]] = []
        self.decodings: list[tuple[asyncio.Future[Decoded], memoryview]] = []

    def encode(self, data: bytes, encoding: int) -> asyncio.Future[Encoded]:
        self.encodes.append(asyncio.get_running_loop().create_future())
        return self.encodes[-1]

    def decode(self, data: memoryview, encoding: int, into: memoryview) -> asyncio.Future[Decoded]:
        self.decodings.append((asyncio.get_running_loop().create_future(), into))
        return self.decodings[-1][0]


async def test_they_leave_in_the_order_in_which_they_came() -> None:
    codec, told = ByHand(), 0

    def ready() -> None:
        nonlocal told
        told += 1

    ahead = Ahead(codec, CompressionGauge("on"), PLANES_OF_2, ready)
    data = bytes(1000)
    for key in range(4):
        assert ahead.room == (key < 3)
        ahead.put(chunk_of(memoryview(data), block=key, key=key), encode=key != 2)
    assert ahead.pop() is None
    codec.encodes[1].set_result(Encoded(b"one", 0.1))
    await asyncio.sleep(0)
    assert ahead.pop() is None
    assert told == 0
    codec.encodes[0].set_result(Encoded(None, 0.1))  # it does not shrink
    await asyncio.sleep(0)
    assert told == 1
    left = []
    while (chunk := ahead.pop()) is not None:
        left.append((chunk.key, chunk.header.encoding, bytes(chunk.data)))
    assert left == [(0, 0, data), (1, PLANES_OF_2, b"one"), (2, 0, data)]
    assert ahead.recall() == [3]
    codec.encodes[2].set_result(Encoded(b"late", 0.1))
    await asyncio.sleep(0)
    assert ahead.pop() is None
    assert told == 1


class Failing:
    """A codec whose library fails."""

    def encode(self, data: memoryview | bytes, encoding: int) -> bytes | None:
        raise MemoryError

    def decode(self, data: memoryview | bytes, encoding: int, into: memoryview) -> None:
        raise RuntimeError


async def test_a_codec_that_fails_holds_up_nothing() -> None:
    """A chunk leaves as it is; one that came counts as damaged, and its memory is given back."""
    happened = asyncio.Event()
    codec = CodecThreads(Failing, 1, Counter())
    ahead = Ahead(codec, CompressionGauge("on"), PLANES_OF_2, happened.set)
    ahead.put(chunk_of(memoryview(b"some"), key=3), encode=True)
    await asyncio.wait_for(happened.wait(), 10)
    chunk = ahead.pop()
    assert chunk is not None
    assert (chunk.key, chunk.header.encoding, bytes(chunk.data)) == (3, 0, b"some")
    done = await codec.decode(memoryview(b"some"), PLANES_OF_2, memoryview(bytearray(8)))
    assert not done.right
    codec.close()


async def test_a_codec_that_cannot_be_made_holds_up_nothing() -> None:
    def none() -> Failing:
        raise MemoryError

    codec = CodecThreads(none, 1, Counter())
    assert (await codec.encode(b"some", PLANES_OF_2)).data is None
    assert not (await codec.decode(memoryview(b"some"), PLANES_OF_2, memoryview(bytearray(8)))).right
    codec.close()


async def test_threads_in_any_order() -> None:
    counters: Counter[str] = Counter()
    codec = CodecThreads(PlaneCodec, 3, counters)
    happened = asyncio.Event()
    ahead = Ahead(codec, CompressionGauge("on"), PLANES_OF_2, happened.set)
    draw = random.Random(3)
    for key in range(40):
        ahead.put(chunk_of(memoryview(bytes(2 * draw.randrange(1, 60_000))), key=key), encode=True)
    keys: list[int] = []
    while len(keys) < 40:
        while (chunk := ahead.pop()) is not None:
            keys.append(chunk.key)
        if len(keys) < 40:
            happened.clear()
            await asyncio.wait_for(happened.wait(), 10)
    codec.close()
    assert keys == list(range(40))


@dataclass
class Somebody:
    node: str = "p"
    over: bool = False


def stream() -> Stream:
    connection = Connection(Dialler(Identity("x", Role.MAIN, "b", 1), None, bytes(16)), max_chunk=4096)

    def receive_into(target: memoryview) -> bool:
        """The test itself has the bytes."""
        return True

    connection.receive_into = receive_into
    return Stream(connection, object(), dialled=True)  # type: ignore[arg-type]


async def test_a_session_that_ends_while_its_chunk_is_decoded() -> None:
    core, codec, somebody = RecordingCore(), ByHand(), Somebody()
    memory = [bytearray(1000) for _ in range(3)]
    core.buffers = lambda chunk: memoryview(memory[chunk.block])
    performed: list[int] = []
    intake = Intake(core, 4096, Counter(), codec, lambda: 0.0, lambda: performed.append(1))
    one = stream()
    for block in range(3):
        chunk = KvChunk(TICKET, 0, 0, block, 0, 1000, PLANES_OF_2, xxhash.xxh3_64_intdigest(bytes(1000)))
        intake.start(one, somebody, ChunkStart(chunk, 700))
        intake.done(one, 0.0, ChunkDone(chunk))
    codec.decodings[0][0].set_result(Decoded(True, 0.1))
    await asyncio.sleep(0)
    assert [chunk.block for chunk, _, right in core.chunks if right] == [0]
    intake.end(one)  # the connection broke: what was here whole counts all the same
    codec.decodings[2][0].set_result(Decoded(True, 0.1))
    await asyncio.sleep(0)
    assert [chunk.block for chunk, _, right in core.chunks if right] == [0, 2]
    somebody.over = True
    codec.decodings[1][0].set_result(Decoded(True, 0.1))
    await intake.settled()
    await asyncio.sleep(0)
    assert [chunk.block for chunk in core.broken] == [1]
    assert len(core.chunks) == 2
    assert len(performed) == 3
    for each in memory[1:2]:
        each.append(0)  # BufferError where anything still refers to it
