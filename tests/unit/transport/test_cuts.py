"""Broken connections: what was promised arrives once, what cannot is reported once, memory is let go."""

from __future__ import annotations

import asyncio
import os
import random

from msgspec.structs import replace

from shared.wire import messages as m
from shared.wire.codec import encode
from shared.wire.connection import Connection, LinkMessage
from shared.wire.framing import Frame, FrameKind, chunk_head, frame_bytes
from shared.wire.handshake import Identity, Listener, Offer
from shared.wire.messages import Role
from tests.support.fault_proxy import FaultProxy
from tests.support.raw_peer import RawPeer
from tests.support.recording_core import chunk_of
from tests.support.resuming_core import ReceivingCore, SendingCore
from tests.support.samples import RID
from tests.support.wired import QUICK, Node, joined, wired

CHUNK = 50_000


async def test_messages_arrive_once_and_in_order_over_many_cuts() -> None:
    p, md = Node("p"), Node("md")
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        await joined(p, md, port=proxy.port)
        for number in range(300):
            p.send("md", m.Resume(RID, number))
            md.send("p", (m.Feed(RID, 1, number, m.Do.HOLD), os.urandom(4 * (number % 50) * 100)))
            if number % 30 == 29:
                proxy.cut()
                await p.core.until(lambda seen=number // 30: len(p.core.resumed) > seen)  # type: ignore[misc]
        await md.core.until(lambda: len(md.core.messages) == 300)
        await p.core.until(lambda: len(p.core.messages) == 300)
        assert [message for _, message, _ in md.core.messages] == [m.Resume(RID, n) for n in range(300)]
        starts = [message.start for _, message, _ in p.core.messages if isinstance(message, m.Feed)]
        assert starts == list(range(300))
        assert len(p.core.sessions) == 1
        assert p.core.lost == md.core.lost == []


async def test_a_big_transfer_arrives_whole_over_cuts_in_the_middle_of_chunks() -> None:
    data = os.urandom(12_000_000)
    receiver, sender = ReceivingCore(len(data), CHUNK), SendingCore(data, CHUNK)
    p, md = Node("p", core=sender), Node("md", Role.MAIN, core=receiver)
    draw = random.Random(5)
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        proxy.cut_after(1_000_000)
        await joined(p, md, port=proxy.port, bulk=2)
        cuts = 0
        while receiver.missing:
            if proxy.cut_at is None and cuts < 8:
                cuts += 1
                proxy.cut_after(draw.randrange(300_000, 1_500_000))
            count = len(receiver.chunks)
            await receiver.until(lambda seen=count: len(receiver.chunks) > seen)  # type: ignore[misc]
        assert receiver.memory == data
        assert all(right for _, _, right in receiver.chunks)
        assert receiver.broken  # at least one cut was in the middle of a chunk
        assert cuts >= 5
        await sender.until(lambda: not sender.out)
    assert receiver.landing == set()
    assert receiver.lost == sender.lost == []


async def test_what_was_being_written_is_let_go_when_the_connection_is_cut() -> None:
    p, md = Node("p"), Node("md", Role.MAIN)
    data = [bytearray(1 << 20) for _ in range(30)]
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        await joined(p, md, port=proxy.port, bulk=1)
        p.offer("md", chunk_of(memoryview(b"first"), key=0))
        await md.core.until(lambda: bool(md.core.chunks))
        proxy.freeze()
        p.offer("md", *(chunk_of(memoryview(one)[: 1 << 18], key=key) for key, one in enumerate(data, 1)))
        await p.core.until(lambda: len(p.core.written) > 1)  # the kernel has taken what it takes
        proxy.heal()
        proxy.cut()
        await p.core.until(lambda: any(not sent for _, sent in p.core.written))
        for key, _ in p.core.written:
            if key:
                data[key - 1].append(0)  # BufferError where anything still refers to the memory
        await p.core.until(lambda: len(p.core.written) == 31)  # the rest went over the next connection
        assert p.core.resumed


async def test_a_silent_cut_is_found_and_healed() -> None:
    p, md = Node("p"), Node("md")
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        await joined(p, md, port=proxy.port)
        proxy.freeze()
        await p.core.until(lambda: ("md", True) in p.core.suspects)
        await md.core.until(lambda: ("p", True) in md.core.suspects)
        p.send("md", m.Drain(True))
        proxy.heal()
        await p.core.until(lambda: ("md", False) in p.core.suspects)
        await md.core.until(lambda: bool(md.core.messages) and ("p", False) in md.core.suspects)
        assert len(md.core.messages) == 1
        assert p.core.lost == md.core.lost == []
        assert p.core.resumed


async def test_a_peer_that_stays_away_is_lost_once_when_its_lease_is_over() -> None:
    quick = replace(QUICK, lease=0.6)
    p, md = Node("p", policy=quick), Node("md", policy=quick)
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        await joined(p, md, port=proxy.port)
        p.send("md", m.Drain(True))
        await md.core.until(lambda: bool(md.core.messages))
        proxy.refuse()
        await p.core.until(lambda: bool(p.core.lost))
        await md.core.until(lambda: bool(md.core.lost))
        p.send("md", m.Drain(False))  # nobody is there: dropped
        proxy.heal()
        await p.core.until(lambda: len(p.core.sessions) == 2)
        await md.core.until(lambda: len(md.core.sessions) == 2)
        p.send("md", m.Flush())
        await md.core.until(lambda: len(md.core.messages) == 2)
        assert [type(message) for _, message, _ in md.core.messages] == [m.Drain, m.Flush]
        assert len(p.core.lost) == len(md.core.lost) == 1
        assert "0.6" in p.core.lost[0][1]


async def test_more_than_may_be_kept_ends_the_session_once() -> None:
    policy = replace(QUICK, resend_bytes=100_000, lease=30.0)
    p, md = Node("p", policy=policy), Node("md", policy=policy)
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        await joined(p, md, port=proxy.port)
        proxy.refuse()
        for number in range(100):
            p.send("md", (m.Feed(RID, 1, number, m.Do.HOLD), bytes(4000)))
        assert len(p.core.lost) == 1
        assert "resend_bytes" in p.core.lost[0][1]
        proxy.heal()
        await p.core.until(lambda: len(p.core.sessions) == 2)
        await md.core.until(lambda: len(md.core.lost) == 1)
        p.send("md", m.Drain(True))
        await md.core.until(lambda: bool(md.core.messages) and isinstance(md.core.messages[-1][1], m.Drain))


async def test_bulk_that_is_stuck_while_control_answers_is_made_again() -> None:
    """A receiver whose bulk connection accepts nothing: the other connection goes on to answer."""
    p, md = Node("p"), Identity("md", Role.MAIN, "a", 5)
    async with wired(p):
        port = await p.listen()
        control = await (await RawPeer.dial(port, md)).opened()
        assert control.agreed is not None
        session = control.agreed.session
        bulk = await (await RawPeer.dial(port, md, bulk=1, session=session, peer_incarnation=1)).opened()
        data = memoryview(bytearray(1 << 20))
        p.offer("md", *(chunk_of(data[: 1 << 18], key=key) for key in range(100)))
        answering = asyncio.ensure_future(_answer_pings(control))
        await p.core.until(lambda: p.endpoint.counters["bulk_stalls"] == 1)
        await p.core.until(lambda: any(not sent for _, sent in p.core.written))
        assert p.core.lost == []
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await control.close()
        await bulk.close()


async def test_a_new_connection_of_a_live_session_fences_the_old_one() -> None:
    md, p = Node("md"), Identity("p", Role.PREFILL, "a", 9)
    async with wired(md):
        port = await md.listen()
        first = await (await RawPeer.dial(port, p)).opened()
        assert first.agreed is not None
        session = first.agreed.session
        second = await (await RawPeer.dial(port, p, session=session, peer_incarnation=1)).opened()
        assert second.agreed is not None
        assert second.agreed.resumed
        await asyncio.wait_for(first.until_closed(), 5)
        assert len(md.core.sessions) == 1
        assert md.core.resumed == ["p"]
        assert md.core.lost == []
        await first.close()
        await second.close()


async def test_a_handshake_that_breaks_before_its_confirmation_is_gone_on_with() -> None:
    """The listener holds the session already: it is not lost and begun again because the last frame was."""
    md = Identity("md", Role.MAIN, "a", 5)
    hellos: list[m.Hello] = []

    def offer(hello: m.Hello) -> Offer:
        hellos.append(hello)
        return Offer(hello.session or 77, 0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(Listener(md, None, os.urandom(16), offer), max_chunk=1000)
        while connection.agreed is None:
            data = await reader.read(1000)
            connection.get_buffer()[: len(data)] = data
            connection.buffer_updated(len(data))
            connection.next_event()
            writer.write(connection.take_output())
        if len(hellos) > 1:
            writer.write(frame_bytes(Frame(FrameKind.ACK, b"")))
            await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    p = Node("p")
    async with server, wired(p):
        p.endpoint.dial("md", "127.0.0.1", server.sockets[0].getsockname()[1])
        await p.core.until(lambda: bool(p.core.sessions))
        assert [hello.session for hello in hellos] == [0, 77]
        assert p.core.lost == []


async def test_a_half_received_chunk_gives_its_block_back() -> None:
    md, p = Node("md", Role.MAIN), Identity("p", Role.PREFILL, "a", 9)
    block = bytearray(1000)
    md.core.buffers = lambda chunk: memoryview(block)
    async with wired(md):
        port = await md.listen()
        control = await (await RawPeer.dial(port, p)).opened()
        assert control.agreed is not None
        number = control.agreed.session
        bulk = await (await RawPeer.dial(port, p, bulk=1, session=number, peer_incarnation=1)).opened()
        chunk = m.KvChunk(b"t" * 16, 0, 0, 3, 0, 1000, 0, 0)
        bulk.send(chunk_head(encode(chunk), 1000) + bytes(400))
        await asyncio.sleep(0.05)
        await bulk.close()
        await md.core.until(lambda: md.core.broken == [chunk])
        block.append(0)  # nothing refers to it any more
        assert md.core.chunks == []
        await control.close()


async def _answer_pings(peer: RawPeer) -> None:
    while True:
        for event in await peer.events():
            if isinstance(event, LinkMessage) and isinstance(event.message, m.Ping):
                pong = encode(m.Pong(event.message.stamp))
                peer.send(frame_bytes(Frame(FrameKind.LINK, pong)))
