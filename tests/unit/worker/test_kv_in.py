"""KV that arrives: checksums, repeats, strangers, buffers that outlive their ticket, reports."""

from __future__ import annotations

import itertools

import xxhash

from shared.policy.config import LinePolicy
from shared.wire import messages as m
from tests.support.mesh import LAYOUT, Bench, greedy, worker_node

BLOCK = LAYOUT.block_bytes
IDS = list(range(50, 93))  # ten full blocks


def bench_of(**line: float) -> Bench:
    policy = LinePolicy(**line)  # type: ignore[arg-type]
    return Bench(
        worker_node("p", m.Role.PREFILL, blocks=64),
        worker_node("md", m.Role.MAIN, blocks=64, line=policy),
        chunk=100,
    )


def transfer(bench: Bench, rate: float = 0.0) -> m.Admitted:
    live = bench.sim.link("p", "md")
    assert live is not None
    live.line.rate = rate
    rid = bench.rid()
    bench.admit("md", rid, IDS, greedy(60))
    bench.prefill("p", rid, IDS, greedy(60))
    admitted = bench.until(m.Admitted)
    bench.attach("p", "md", admitted)
    return admitted


def chunk(ticket: bytes, block: int, data: bytes, offset: int = 0) -> m.KvChunk:
    return m.KvChunk(ticket, 0, 0, block, offset, len(data), 0, xxhash.xxh3_64_intdigest(data))


def admitted_only(bench: Bench) -> m.Admitted:
    bench.admit("md", bench.rid(), IDS, greedy(60))
    return bench.until(m.Admitted)


def test_a_damaged_chunk_is_asked_for_again_and_never_used() -> None:
    bench = bench_of()
    damaged = 0

    def damage(header: m.KvChunk, data: bytearray) -> None:
        nonlocal damaged
        if header.block == 3 and damaged < 2:
            damaged += 1
            data[0] ^= 1

    bench.sim.damage = damage
    transfer(bench)
    assert bench.until(m.Have, "md").complete
    md = bench["md"].worker
    assert md.counters["chunks_damaged_total"] == 2
    bench.feed("md", bench.rid(), 3, 43, bench.output(bench.rid(), 43, "p"), m.Do.OWN)
    bench.until(m.Finished, "md")
    bench.release(bench.rid(), 3)
    bench.run(0.1)
    assert bench.idle()


def test_damage_without_end_fails_the_request() -> None:
    bench = bench_of()

    def damage(header: m.KvChunk, data: bytearray) -> None:
        data[0] ^= header.block == 3

    bench.sim.damage = damage
    admitted = transfer(bench)
    failed = bench.until(m.Failed, "md")
    assert (failed.reason, failed.ticket) == (m.FailReason.STALLED, admitted.ticket)
    assert "checksum" in failed.detail
    bench.release(bench.rid(), 3)
    bench.run(0.5)
    assert bench.idle()


def test_a_chunk_of_an_unknown_ticket_is_drained_and_answered_once() -> None:
    bench = bench_of()
    md = bench["md"].worker
    seen: list[m.Message] = []
    bench.sim.spy = lambda source, target, message, payload: seen.append(message)
    stray = chunk(b"?" * 16, 0, b"x" * 100)
    for _ in range(5):
        assert md.chunk_buffer("p", stray) is None
        bench.sim.call(bench["md"], lambda: md.on_chunk(bench.sim.now, "p", stray, memoryview(b""), False))
    haves = [message for message in seen if isinstance(message, m.Have)]
    assert [(have.ticket, have.gone) for have in haves] == [(b"?" * 16, True)]
    assert md.counters["chunks_gone_total"] == 5


def test_memory_is_given_only_for_what_is_missing() -> None:
    bench = bench_of()
    md = bench["md"].worker
    ticket = admitted_only(bench).ticket
    whole = chunk(ticket, 0, b"a" * BLOCK)
    buffer = md.chunk_buffer("p", whole)
    assert buffer is not None
    assert len(buffer) == BLOCK
    assert md.chunk_buffer("p", whole) is None, "being received already"
    buffer[:] = b"a" * BLOCK
    md.on_chunk(1.0, "p", whole, buffer, True)
    assert md.chunk_buffer("p", whole) is None, "published"
    flipped = chunk(ticket, 0, b"b" * BLOCK)
    assert md.chunk_buffer("p", flipped) is None
    md.on_chunk(1.0, "p", flipped, memoryview(b"b" * BLOCK), False)
    block = bench["md"].pool.find(bench["md"].worker.rooms.kv_in.all()[0].book.hashes[0])
    assert block is not None
    assert bytes(md.site.view(block)) == b"a" * BLOCK, "a published block never changes"
    for bad in (
        chunk(ticket, 10, b"x"),
        chunk(ticket, 1, b"x", BLOCK),
        m.KvChunk(ticket, 7, 0, 1, 0, 1, 0, 0),
    ):
        assert md.chunk_buffer("p", bad) is None


def test_a_block_is_not_reused_while_a_chunk_is_received_into_it() -> None:
    """I6 at the receiver: the request ends inside a chunk."""
    bench = bench_of()
    md, pool = bench["md"].worker, bench["md"].pool
    ticket = admitted_only(bench).ticket
    half = chunk(ticket, 0, b"a" * 100)
    assert md.chunk_buffer("p", half) is not None
    bench.release(bench.rid(), 5, "md")
    bench.run(0.1)
    counts = md.counts()
    assert (counts["requests"], counts["tickets"], counts["buffers"], counts["pins"]) == (0, 0, 1, 1)
    assert len(pool.take(63)) == 63
    assert pool.free == 0, "the one that is written to is nobody's"
    md.on_chunk(bench.sim.now, "p", half, memoryview(b"a" * 100), True)
    assert (md.counts()["buffers"], pool.free) == (0, 1)


def test_a_connection_that_ends_inside_a_chunk_gives_its_block_back() -> None:
    bench = bench_of()
    md = bench["md"].worker
    ticket = admitted_only(bench).ticket
    half = chunk(ticket, 0, b"a" * 100)
    assert md.chunk_buffer("p", half) is not None
    md.on_chunk_broken("p", half)
    assert md.counts()["buffers"] == 0
    assert md.chunk_buffer("p", half) is not None, "its range may come again"
    bench.release(bench.rid(), 5, "md")
    bench.run(0.1)
    md.on_chunk_broken("p", half)
    assert md.idle()


def reports_of(bench: Bench, rate: float) -> list[tuple[float, m.Have]]:
    """When the sender got which report of one transfer."""
    reports: list[tuple[float, m.Have]] = []

    def spy(source: str, target: str, message: m.Message, payload: bytes) -> None:
        if isinstance(message, m.Have) and target == "p":
            reports.append((bench.sim.now, message))

    bench.sim.spy = spy
    transfer(bench, rate)
    bench.until(m.Have, "md")
    return reports


def test_reports_come_by_bytes() -> None:
    reports = reports_of(bench_of(have_bytes=512, have_every=10.0), 20_000.0)
    assert [have.published for _, have in reports[:3]] == [2, 4, 6]


def test_reports_come_by_time() -> None:
    reports = reports_of(bench_of(have_every=0.05), 1500.0)
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(reports)]
    assert max(gaps) < 0.2
    assert min(gaps[:-1]) >= 0.05 - 1e-9
    assert any(have.ranges for _, have in reports), "verified bytes of blocks that are not whole"


def test_blocks_that_the_node_computed_itself_are_not_waited_for() -> None:
    bench = bench_of()
    bench.sim.link("p", "md").line.rate = 500.0  # type: ignore[union-attr]
    bench.admit("md", bench.rid(1), IDS, greedy(60))
    first = bench.until(m.Admitted)
    bench.admit("md", bench.rid(2), IDS, greedy(60))
    second = bench.until(m.Admitted, nth=2)
    assert second.expected == 10
    bench.feed("md", bench.rid(2), 9, 43, [], m.Do.OWN)  # extends over all of it by itself
    have = bench.until(m.Have, "md")
    assert (have.ticket, have.complete) == (first.ticket, True)
    bench.until(m.Finished)
    for counter in (1, 2):
        bench.release(bench.rid(counter), 9)
    bench.run(0.1)
    assert bench.idle()
