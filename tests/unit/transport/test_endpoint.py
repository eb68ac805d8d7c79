"""Two nodes over real sockets: sessions begin and end, messages and chunks arrive."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import structs

from shared.errors import ConfigError
from shared.policy.config import LinkPolicy
from shared.transport.line import LineSpec
from shared.transport.security import TlsFiles
from shared.wire import messages as m
from shared.wire.messages import Role
from shared.wire.port import Dial, OutChunk, Undial, WakeBulk
from tests.support.recording_core import RecordingCore, chunk_of
from tests.support.samples import RID, SAMPLING
from tests.support.wired import QUICK, Node, joined, wired

KEY = b"k" * 16


async def test_a_session_opens_once_on_both_sides() -> None:
    p, md = Node("p", datacenter="a", incarnation=7), Node("md", Role.MAIN, datacenter="b", incarnation=8)
    async with wired(p, md):
        await joined(p, md)
        [seen] = p.core.sessions
        assert (seen.node, seen.role, seen.datacenter, seen.incarnation) == ("md", Role.MAIN, "b", 8)
        [seen] = md.core.sessions
        assert (seen.node, seen.role, seen.datacenter, seen.incarnation) == ("p", Role.PREFILL, "a", 7)
        assert p.endpoint.sessions() == ["md"]


async def test_messages_arrive_in_both_directions() -> None:
    p, md = Node("p", key=KEY), Node("md", key=KEY)
    async with wired(p, md):
        await joined(p, md)
        large = m.Admit(RID, 1, b"", 0, 5, SAMPLING, 60_000), os.urandom(400_000)
        p.send("md", m.Drain(True), large, m.Resume(RID, 3))
        md.send("p", m.Missing(RID, bytes(16), 4))
        await md.core.until(lambda: len(md.core.messages) == 3)
        await p.core.until(lambda: len(p.core.messages) == 1)
        kinds = [type(message) for _, message, _ in md.core.messages]
        assert kinds == [m.Drain, m.Admit, m.Resume]  # Resume is of the same request and waits
        assert md.core.messages[1][2] == large[1]
        assert p.core.messages == [("md", m.Missing(RID, bytes(16), 4), b"")]


async def test_a_burst_of_long_prompts_does_not_end_a_session() -> None:
    """Each of them 128k ids: all are pushed before any is sent."""
    router, md = Node("r", Role.ROUTER, policy=LinkPolicy()), Node("md", Role.MAIN, policy=LinkPolicy())
    async with wired(router, md):
        await joined(md, router)
        ids = bytes(4 << 17)
        burst = [m.Admit(m.Rid(1, at), 1, b"", 0, 1 << 17, SAMPLING, 60_000) for at in range(24)]
        router.send("md", *((admit, ids) for admit in burst))
        await md.core.until(lambda: len(md.core.messages) == len(burst) or bool(router.core.lost))
        assert router.core.lost == md.core.lost == []


async def test_chunks_land_in_the_memory_that_the_core_names() -> None:
    p, md = Node("p"), Node("md", Role.MAIN)
    pool = bytearray(1 << 20)
    data = os.urandom(1 << 20)
    md.core.buffers = lambda chunk: memoryview(pool)[chunk.offset : chunk.offset + chunk.length]
    async with wired(p, md):
        await joined(p, md, bulk=2)
        views = [memoryview(data)[at : at + 65536] for at in range(0, 1 << 20, 65536)]
        p.offer("md", *(chunk_of(view, offset=i * 65536, key=i) for i, view in enumerate(views)))
        await md.core.until(lambda: len(md.core.chunks) == len(views))
        await p.core.until(lambda: len(p.core.written) == len(views))
        assert bytes(pool) == data
        assert all(in_place and right for _, in_place, right in md.core.chunks)
        assert sorted(p.core.written) == [(i, True) for i in range(len(views))]


async def test_a_chunk_that_has_no_place_is_received_into_scratch() -> None:
    p, md = Node("p"), Node("md", Role.MAIN)
    async with wired(p, md):
        await joined(p, md, bulk=1)
        p.offer("md", *(chunk_of(memoryview(os.urandom(size))) for size in (1, 100, 200_000)))
        await md.core.until(lambda: len(md.core.chunks) == 3)
        assert [(in_place, right) for _, in_place, right in md.core.chunks] == [(False, True)] * 3


async def test_the_listening_side_sends_chunks_too() -> None:
    p, md = Node("p"), Node("md", Role.MAIN)
    async with wired(p, md):
        await joined(p, md, bulk=1)
        md.offer("p", chunk_of(memoryview(os.urandom(5000))))
        await p.core.until(lambda: len(p.core.chunks) == 1)
        assert p.core.chunks[0][2]


async def test_sends_without_a_session_are_counted_and_dropped() -> None:
    p = Node("p")
    async with wired(p):
        p.send("nobody", m.Drain(True))
        assert p.endpoint.counters["dropped_sends"] == 1


async def test_a_goodbye_ends_the_session_at_once() -> None:
    p, md = Node("p"), Node("md")
    async with wired(p, md):
        await joined(p, md)
        md.send("p", m.Drain(True))
        await md.endpoint.close("drained")
        await p.core.until(lambda: bool(p.core.lost))
        assert p.core.lost == [("md", "goodbye: drained")]
        assert [type(message) for _, message, _ in p.core.messages] == [m.Drain]
        assert md.core.lost == []


async def test_dialling_goes_on_until_somebody_listens() -> None:
    p, md = Node("p"), Node("md")
    async with wired(p, md):
        port = await md.listen()
        await md.endpoint.close()
        later = Node("md", incarnation=2)
        p.dial(md, port=port)
        async with wired(later):
            await asyncio.sleep(0.05)
            await later.endpoint.listen("127.0.0.1", port)
            await p.core.until(lambda: bool(p.core.sessions))
            await p.endpoint.close()


async def test_a_restarted_peer_is_a_new_session_and_the_end_of_the_old() -> None:
    p, md = Node("p"), Node("md", incarnation=1)
    async with wired(p, md):
        await joined(p, md)
        again = Node("p", incarnation=2)
        async with wired(again):
            again.dial(md)
            await md.core.until(lambda: len(md.core.sessions) == 2)
            assert md.core.lost == [("p", "restarted")]
            assert md.core.sessions[1].incarnation == 2
            assert md.endpoint.sessions() == ["p"]
            await p.endpoint.close()
            await again.endpoint.close()


async def test_both_sides_may_dial() -> None:
    p, md = Node("p"), Node("md")
    async with wired(p, md):
        await p.listen()
        await md.listen()
        p.dial(md, bulk=1)
        md.dial(p, bulk=1)
        await p.core.until(lambda: bool(p.core.sessions))
        for number in range(500):  # however the connections race, they settle on one session
            p.send("md", m.Resume(RID, number))
            md.offer("p", chunk_of(memoryview(b"chunk")))
            await asyncio.sleep(0.01)
            if [message for _, message, _ in md.core.messages[-20:]] == [
                m.Resume(RID, at) for at in range(number - 19, number + 1)
            ] and len(p.core.chunks) > 20:
                break
        assert len(p.core.chunks) > 20
        assert len(md.core.messages) >= 20
        assert p.endpoint.sessions() == ["md"]
        assert md.endpoint.sessions() == ["p"]
        again = len(p.core.resumed), len(md.core.resumed)
        await asyncio.sleep(0.3)
        assert (len(p.core.resumed), len(md.core.resumed)) == again  # nobody fences anybody any more


async def test_the_core_is_woken_when_it_asked_for_it() -> None:
    p = Node("p")
    async with wired(p):
        p.core.deadline = p.endpoint.now() + 0.02
        p.perform()
        await p.core.until(lambda: p.core.timers == 1)
        p.core.deadline = p.endpoint.now() + 60
        p.perform()
        p.core.deadline = p.endpoint.now() + 0.01
        p.perform()
        await p.core.until(lambda: p.core.timers == 2)


async def test_the_core_may_name_a_peer_to_dial() -> None:
    p, md = Node("p"), Node("md", Role.MAIN)
    async with wired(p, md):
        port = await md.listen()
        p.core.outbox.append(Dial("md", Role.MAIN, "a", f"127.0.0.1:{port}"))
        p.perform()
        await md.core.until(lambda: bool(md.core.sessions))
        p.offer("md", chunk_of(memoryview(b"x")))  # a worker and a worker: bulk connections come with it
        await md.core.until(lambda: bool(md.core.chunks))


async def test_a_peer_that_the_core_named_and_needs_no_more_is_not_dialled_for_ever() -> None:
    p, md = Node("p"), Node("md", Role.MAIN)
    async with wired(p, md):
        port = await md.listen()
        before = asyncio.all_tasks()
        p.core.outbox.append(Dial("md", Role.MAIN, "a", f"127.0.0.1:{port}"))
        p.perform()
        await p.core.until(lambda: bool(p.core.sessions))
        assert asyncio.all_tasks() > before
        await md.endpoint.close()
        await p.core.until(lambda: bool(p.core.lost))
        p.core.outbox.append(Undial("md"))
        p.perform()
        async with asyncio.timeout(5):
            await asyncio.wait(asyncio.all_tasks() - before)


async def test_a_peer_of_the_configuration_is_dialled_whatever_the_core_says() -> None:
    p, md, again = Node("p"), Node("md", Role.MAIN), Node("md", Role.MAIN, incarnation=2)
    async with wired(p, md, again):
        await joined(p, md)
        p.core.outbox += [Dial("md", Role.MAIN, "a", f"127.0.0.1:{md.port}"), Undial("md")]
        p.perform()
        await md.endpoint.close()
        await p.core.until(lambda: bool(p.core.lost))
        await again.endpoint.listen("127.0.0.1", md.port)
        await again.core.until(lambda: bool(again.core.sessions))


async def test_an_address_that_is_none_costs_nothing_but_itself() -> None:
    """A worker with a mistake in its file says it to all: what else was to be said and done is not lost."""
    p, md = Node("p"), Node("md", Role.MAIN)
    async with wired(p, md):
        await joined(p, md)
        p.core.outbox.append(Dial("x", Role.MAIN, "a", "nowhere"))
        p.send("md", m.Drain(True))
        await md.core.until(lambda: bool(md.core.messages))
        assert p.endpoint.counters["dials_refused"] == 1


async def test_line_shares_are_for_the_transport() -> None:
    line = LineSpec("wan", ("a", "b"), rate=10e6)
    router, p = Node("r", Role.ROUTER), Node("p", lines=[line])
    md = Node("md", Role.MAIN, datacenter="b", lines=[line])
    async with wired(router, p, md):
        await joined(p, router)
        await joined(p, md)
        router.send(
            "p", m.LineShare("wan", 4e6, 1, 60_000, 2), m.LineShare("other", 1.0, 1, 1000), m.Drain(True)
        )
        await p.core.until(lambda: bool(p.core.messages))
        assert [type(message) for _, message, _ in p.core.messages] == [m.Drain]
        view = p.endpoint.line_for("md")
        assert view is not None
        assert (view.name, view.share, view.rate) == ("wan", 4e6, 10e6)


async def test_nothing_listens_beyond_loopback_without_a_key() -> None:
    p = Node("p")
    async with wired(p):
        for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
            with pytest.raises(ConfigError, match="key"):
                await p.endpoint.listen(host, 0)
    keyed = Node("p", key=KEY)
    async with wired(keyed):
        assert await keyed.endpoint.listen("0.0.0.0", 0) > 0


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="16"):
        Node("p", key=b"short")


async def test_closing_twice_and_before_anything_happened() -> None:
    p = Node("p", policy=QUICK)
    async with wired(p):
        await p.endpoint.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_closing_at_any_moment_of_dialling_leaves_nothing(tls: bool) -> None:
    """However far the connection has come: uvloop does not tell of the end of one that is cancelled in
    between."""
    folder = Path(__file__).parents[2] / "golden" / "tls"
    files = (
        TlsFiles(*(str(folder / name) for name in ("mesh.pem", "mesh.key", "mesh-ca.pem"))) if tls else None
    )
    md = Node("md", tls=files)
    async with wired(md):
        await md.listen()
        for turns in range(14):
            p = Node("p", incarnation=turns + 1, tls=files)
            p.dial(md)
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await p.endpoint.close()


class SlicingCore(RecordingCore):
    """Sends 200,000 bytes in chunks as large as they may be."""

    at = 0

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        size = min(limit, 200_000 - self.at)
        self.at += size
        return chunk_of(memoryview(bytes(size)), offset=self.at - size, key=self.at) if size else None


@pytest.mark.parametrize(("ours", "theirs"), [(100_000, 40_000), (40_000, 100_000), (40_000, 40_000)])
async def test_chunks_are_as_large_as_both_sides_take(ours: int, theirs: int) -> None:
    p = Node("p", core=SlicingCore(), policy=structs.replace(QUICK, max_chunk=ours))
    md = Node("md", Role.MAIN, policy=structs.replace(QUICK, max_chunk=theirs))
    async with wired(p, md):
        await joined(p, md, bulk=1)
        p.core.outbox.append(WakeBulk("md"))
        p.perform()
        await md.core.until(lambda: len(md.core.chunks) == 5)
    assert [chunk.length for chunk, *_ in md.core.chunks] == [40_000] * 5


def listening() -> set[int]:
    """Ports that this process listens on."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            own.add(str(descriptor.readlink()))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


async def test_a_node_listens_where_it_was_told_and_nowhere_else() -> None:
    """Sending KV opens no door: chunks come over connections that were accepted at the one port."""
    before = listening()
    p, md = Node("p", key=KEY), Node("md", Role.MAIN, key=KEY)
    async with wired(p, md):
        await joined(p, md, bulk=3)
        p.offer("md", chunk_of(memoryview(bytes(1000))))
        await md.core.until(lambda: len(md.core.chunks) == 1)
        assert listening() - before == {md.port}


class ManyTransfers(RecordingCore):
    """A thousand transfers of a few bytes, each with a ticket of its own."""

    left = 1000

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        if not self.left:
            return None
        self.left -= 1
        chunk = chunk_of(memoryview(bytes(100)), key=self.left + 1)
        ticket = self.left.to_bytes(16, "big")
        return OutChunk(structs.replace(chunk.header, ticket=ticket), chunk.data, chunk.key)


async def test_a_thousand_transfers_use_the_configured_connections() -> None:
    p, md = Node("p", core=ManyTransfers()), Node("md", Role.MAIN)
    most = 0

    def count() -> bool:
        nonlocal most
        most = max(most, len(p.endpoint._inbound.streams), len(md.endpoint._inbound.streams))
        return len(md.core.chunks) == 1000

    async with wired(p, md):
        await joined(p, md, bulk=2)
        p.core.outbox.append(WakeBulk("md"))
        p.perform()
        await md.core.until(count, timeout=50)
    assert most == 3
    assert len({chunk.ticket for chunk, *_ in md.core.chunks}) == 1000
