"""Bad input at a mesh that serves: a documented error for its sender, and every stream beside it is right."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import xxhash

from services.router.service import RouterService
from shared.errors import Rejected
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.connection import Numbered
from shared.wire.framing import Frame, FrameKind, chunk_head, frame_bytes
from shared.wire.handshake import Identity
from shared.worker.process import WorkerProcess
from tests.support.live_client import Answer
from tests.support.live_judge import synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.raw_peer import RawPeer

PROMPT = [*range(3, 203)]
TOKENS = 120
ONE = m.Rid(7, 7)


@contextlib.asynccontextmanager
async def serving(synthetic: SyntheticModel, road: str = "one_shot") -> AsyncIterator[LiveMesh]:
    """A mesh with a stream that is in the middle of its transfer; it has to end right, whatever happens."""
    shape = Shape(rate_mbit=3.0, rtt_ms=2.0, router=ROADS[road][1])
    async with live_mesh(synthetic, shape) as mesh:
        asking = asyncio.create_task(mesh.client.streamed(PROMPT, TOKENS, ignore_eos=True))
        await mesh.until(lambda: mesh.count("main-0", "kv_bytes_in_total") > 5 * 4096, what=mesh.held)
        yield mesh
        await answered(mesh, asking)
        again = await mesh.client.complete([*PROMPT, 9, 9], 20, ignore_eos=True)  # over the cache it left
        assert again.ids == synthetic_answer([*PROMPT, 9, 9], 20, mesh.vocab)


async def answered(mesh: LiveMesh, asking: asyncio.Task[Answer]) -> None:
    answer = await asking
    assert answer.ids == synthetic_answer(PROMPT, TOKENS, mesh.vocab)
    assert answer.pdd["cut"]["count"] <= 1
    assert not any("failed" in reason or "lost" in reason for reason in answer.pdd["reasons"])


def identity_of(mesh: LiveMesh, node: str, **changes: Any) -> Identity:
    """A stranger with all that a node of the mesh has, but for some of it."""
    given = {"node": "stranger", "incarnation": 77, **changes}
    return dataclasses.replace(mesh[node]._endpoint.identity, **given)


async def sent(mesh: LiveMesh, port: int, data: bytes) -> None:
    """Send bytes to a port; returns once it has closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        async with asyncio.timeout(10):
            while await reader.read(1 << 16):
                pass
    writer.transport.abort()


def prefix(kind: int, header: int, payload: int) -> bytes:
    return struct.pack("<2sBBII", b"PD", 1, kind, header, payload)


STRANGE: dict[str, bytes] = {
    "bad_magic": b"POST /v1/completions HTTP/1.1\r\n\r\n",
    "bad_version": b"PD\x09\x01" + bytes(8),
    "unknown_kind": prefix(99, 1, 1),
    "frame_too_large": prefix(2, 10, 2**32 - 1),
    "bad_header": frame_bytes(Frame(FrameKind.HANDSHAKE, b"\xc1")),
    "unexpected_message": frame_bytes(Frame(FrameKind.LINK, encode(m.Ping(1)))),
}


async def test_strangers_at_every_port(synthetic: SyntheticModel) -> None:
    async with serving(synthetic) as mesh:
        services: list[RouterService | WorkerProcess] = [mesh.router, *mesh.workers.values()]
        for code, data in STRANGE.items():
            await asyncio.gather(*(sent(mesh, service.port, data) for service in services))
            assert [service._endpoint.counters[f"refused_{code}"] for service in services] == [1] * 4


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("fingerprint", {"fingerprint": "other weights"}),
        ("layout", {"layout": b"L" * 16, "layout_text": "bfloat16"}),
        ("template", {"fingerprint": "", "layout": b"", "role": m.Role.ROUTER, "template": "other"}),
    ],
)
async def test_what_does_not_fit_is_named(
    field: str, changes: dict[str, Any], synthetic: SyntheticModel
) -> None:
    async with serving(synthetic) as mesh:
        with pytest.raises(Rejected) as told:
            await (
                await RawPeer.dial(mesh["main-0"].port, identity_of(mesh, "prefill-0", **changes))
            ).opened()
        assert told.value.field == field


class Intruder:
    """A member of the mesh with a control and a bulk connection to one worker, which sends what it likes."""

    def __init__(self, control: RawPeer, bulk: RawPeer) -> None:
        self.control = control
        self.bulk = bulk

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, mesh: LiveMesh, node: str) -> AsyncIterator[Intruder]:
        who, port = identity_of(mesh, "prefill-0"), mesh[node].port
        control = await (await RawPeer.dial(port, who)).opened()
        assert control.agreed is not None
        ours, theirs = control.agreed.session, mesh[node].worker.site.incarnation
        bulk = await (await RawPeer.dial(port, who, bulk=1, session=ours, peer_incarnation=theirs)).opened()
        try:
            yield cls(control, bulk)
        finally:
            await bulk.close()
            await control.close()

    def chunk(self, ticket: bytes, block: int, data: bytes, *, checksum: int | None = None) -> None:
        right = xxhash.xxh3_64_intdigest(data) if checksum is None else checksum
        header = m.KvChunk(ticket, 0, 0, block, 0, len(data), 0, right)
        self.bulk.send(chunk_head(encode(header), len(data)) + data)

    async def told(self, holds: Callable[[m.Message], bool]) -> m.Message:
        """The next control message of a kind."""
        async with asyncio.timeout(10):
            while True:
                for event in await self.control.events():
                    if isinstance(event, Numbered) and event.frame.kind is FrameKind.MESSAGE:
                        message = decode(event.frame.header)
                        if holds(message):
                            return message


async def test_a_chunk_of_an_unknown_ticket_is_answered_gone(synthetic: SyntheticModel) -> None:
    async with serving(synthetic) as mesh, Intruder.at(mesh, "main-0") as intruder:
        intruder.chunk(b"t" * 16, 0, bytes(4096))
        have = await intruder.told(lambda message: isinstance(message, m.Have))
        assert isinstance(have, m.Have)
        assert (have.ticket, have.gone) == (b"t" * 16, True)
        assert mesh.count("main-0", "chunks_gone_total") == 1


async def test_damaged_chunks_of_a_live_ticket_are_asked_for_again(synthetic: SyntheticModel) -> None:
    """Bytes whose checksum is another's, in a block that has not come yet."""
    async with serving(synthetic) as mesh, Intruder.at(mesh, "main-0") as intruder:
        (arrival,) = mesh["main-0"].worker._rooms.kv_in.all()
        last = len(PROMPT) // 4 - 1
        for block in range(last - 3, last + 1):
            intruder.chunk(arrival.ticket, block, b"\xff" * 4096, checksum=1)
        await mesh.until(lambda: mesh.count("main-0", "chunks_damaged_total") == 4)


async def test_a_flipped_bit_after_publication_changes_nothing(synthetic: SyntheticModel) -> None:
    """The block comes again with other bytes and their right checksum; so do ranges outside of any block."""
    async with serving(synthetic) as mesh, Intruder.at(mesh, "main-0") as intruder:
        worker = mesh["main-0"].worker
        (arrival,) = worker._rooms.kv_in.all()
        await mesh.until(lambda: arrival.book.published >= 3)
        published = worker.site.pool.find(arrival.book.hashes[1])
        assert published is not None
        before = bytes(worker.site.view(published))
        intruder.chunk(arrival.ticket, 1, bytes([before[0] ^ 1]) + before[1:])
        intruder.chunk(arrival.ticket, 10_000, before)
        intruder.chunk(arrival.ticket, 2, before + before)
        await mesh.until(lambda: mesh.count("main-0", "kv_bytes_drained_total") >= 4 * 4096)
        assert bytes(worker.site.view(published)) == before


def lies(r: m.Rid, term: int, ticket: bytes) -> list[tuple[m.Message, bytes]]:
    """What a worker may say of a request that is none of its business."""
    return [
        (m.TokensOut((m.TokenRow(r, term, len(PROMPT), (1, 2, 3)),)), b""),
        (m.TokensOut((m.TokenRow(r, term + 50, 0, (1,)), m.TokenRow(ONE, 1, 1, (1,)))), b""),
        (m.Finished(r, term, len(PROMPT) + 1, m.FinishReason.STOP), b""),
        (m.Failed(r, term, ticket, m.FailReason.INTERNAL, "a lie"), b""),
        (m.Have(ticket, r, published=10**6, complete=True), b""),
        (m.Have(ticket, r, gone=True), b""),
        (m.Missing(r, ticket, 0), b""),
        (m.CaughtUp(r, term, 10**9), b""),
        (m.Admitted(r, term, ticket, 10**6, 0, 10**6, b"h" * 16, 5), b""),
        (m.Refused(r, term, m.RefuseReason.BAD_REQUEST, 0, "a lie"), b""),
        (m.KvEvents(5, 1, 0), bytes(16)),
        (m.Snapshot(9, 2), bytes(32)),
    ]


async def test_a_worker_that_speaks_for_others(synthetic: SyntheticModel) -> None:
    """What it says of requests that others serve, to the router and to workers, is nobody's truth."""
    async with serving(synthetic) as mesh:
        (r,) = mesh.router.core.requests.values()
        assert r.main is not None
        who = identity_of(mesh, "prefill-0")
        everywhere = [mesh.router.port, mesh["main-0"].port, mesh["prefill-0"].port, mesh["relay-0"].port]
        peers = [await (await RawPeer.dial(port, who)).opened() for port in everywhere]
        for peer in peers:
            for seq, (message, payload) in enumerate(lies(r.rid, r.main.term, r.main.ticket), 1):
                peer.send(frame_bytes(Frame(FrameKind.MESSAGE, encode(message), payload, seq, 0)))
        last = len(lies(r.rid, 1, r.main.ticket))
        services: list[RouterService | WorkerProcess] = [mesh.router, *mesh.workers.values()]
        await mesh.until(
            lambda: all(one._endpoint._book.peers["stranger"].session.last_seq == last for one in services)
        )
        for peer in peers:
            await peer.close()


async def test_a_worker_of_another_model_is_not_used(synthetic: SyntheticModel) -> None:
    """It may join the router, which has no fingerprint to compare; no request is placed on it."""
    async with serving(synthetic) as mesh:
        who = identity_of(mesh, "main-0", fingerprint="other weights", layout=b"L" * 16)
        peer = await (await RawPeer.dial(mesh.router.port, who)).opened()
        announce = m.Announce(
            m.Role.MAIN,
            "other",
            4,
            4096,
            9999,
            4096,
            64,
            False,
            "127.0.0.1:1",
            (),
            "other weights",
            b"L" * 16,
        )
        peer.send(frame_bytes(Frame(FrameKind.MESSAGE, encode(announce), b"", 1, 0)))
        await mesh.until(lambda: "other" in [one["model"] for one in mesh.router.core.ready()["workers"]])
        answer = await mesh.client.complete(PROMPT[5:], 9, ignore_eos=True)
        assert answer.ids == synthetic_answer(PROMPT[5:], 9, mesh.vocab)
        await peer.close()
