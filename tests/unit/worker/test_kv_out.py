"""KV that leaves: classes, pins, breaks, stalls, peers that are not who they were."""

from __future__ import annotations

import pytest

from shared.policy.config import LinePolicy, LinkPolicy
from shared.wire import messages as m
from shared.wire.codec import encode
from tests.support.mesh import LAYOUT, Bench, greedy, hashes_of, worker_node

BLOCK = LAYOUT.block_bytes
IDS = list(range(50, 93))  # ten full blocks


def bench_of(rate: float = 0.0, chunk: int = 256, **link: float) -> Bench:
    policy = LinkPolicy(**link)  # type: ignore[arg-type]
    bench = Bench(
        worker_node("p", m.Role.PREFILL, blocks=128, link=policy),
        worker_node("md", m.Role.MAIN, blocks=128, link=policy, line=LinePolicy(have_every=0.02)),
        worker_node("rld", m.Role.RELAY, blocks=128),
        chunk=chunk,
    )
    live = bench.sim.link("p", "md")
    assert live is not None
    live.line.rate = rate
    return bench


def prefilled(bench: Bench, counter: int = 1, ids: list[int] = IDS) -> m.Rid:
    rid = bench.rid(counter)
    before = len(bench.router.of(m.TokensOut, "p"))
    bench.prefill("p", rid, ids, greedy(len(ids) + 20))
    bench.until(m.TokensOut, "p", nth=before + 1)
    return rid


def admitted(bench: Bench, rid: m.Rid, ids: list[int] = IDS, node: str = "md", **more: bool) -> m.Admitted:
    before = len(bench.router.of(m.Admitted, node))
    bench.admit(node, rid, ids, greedy(len(ids) + 20), **more)  # type: ignore[arg-type]
    return bench.until(m.Admitted, node, nth=before + 1)


def received(bench: Bench) -> float:
    return bench["md"].worker.counters.get("kv_bytes_in_total", 0.0)


def carried(bench: Bench) -> int:
    live = bench.sim.link("p", "md")
    assert live is not None
    return live.line.carried.total()


def test_pins_end_block_by_block() -> None:
    bench = bench_of(rate=2000.0)
    rid = prefilled(bench)
    bench.run(6)  # the hold for other targets is over
    bench.prefill("p", bench.rid(2), IDS, greedy(63))
    bench.until(m.TokensOut, nth=2)
    bench.run(6)
    assert bench["p"].worker.counts()["send_pins"] == 0
    bench.attach("p", "md", admitted(bench, rid))
    seen: set[int] = set()

    def landed() -> bool:
        seen.add(bench["p"].worker.counts()["send_pins"])
        return bool(bench.router.of(m.Have))

    bench.sim.run(stop=landed)
    assert len(seen) > 5, "they fall in steps"
    bench.run(0.1)
    assert bench["p"].worker.counts()["send_pins"] == 0


def test_a_covered_transfer_gives_way_and_a_second_attach_changes_that() -> None:
    bench = bench_of(rate=20_000.0)
    first, other = prefilled(bench), list(range(300, 343))
    second = prefilled(bench, 2, other)
    one, two = admitted(bench, first), admitted(bench, second, other)
    bench.attach("p", "md", one, cls=m.TransferClass.PARKED)
    bench.attach("p", "md", two, cls=m.TransferClass.UNCOVERED)
    assert bench.until(m.Have, "md").rid == second
    counters = bench["p"].worker.counters
    assert counters["kv_bytes_out_parked_total"] <= 2 * BLOCK, "only what was on the line already"
    assert counters["kv_bytes_out_uncovered_total"] == 10 * BLOCK
    bench.attach("p", "md", one, cls=m.TransferClass.COVERED)
    assert bench.until(m.Have, "md", nth=2).rid == first
    assert bench["p"].worker.counters["kv_bytes_out_covered_total"] > 0


@pytest.mark.parametrize("pause", [0.0, 0.3, 1.5])
def test_after_a_break_only_what_is_missing_is_sent(pause: float) -> None:
    bench = bench_of(rate=5000.0, chunk=100)
    bench.attach("p", "md", admitted(bench, prefilled(bench)))
    bench.sim.run(stop=lambda: received(bench) > 1200)
    bench.sim.cut("p", "md")
    bench.run(pause)
    bench.sim.heal("p", "md")
    assert bench.until(m.Have, "md", within=0.8).complete, "as soon as the receiver has reported"
    assert carried(bench) <= 10 * BLOCK + 3 * 100 + BLOCK


def test_a_break_before_anything_arrived_costs_only_the_wait_for_a_report() -> None:
    bench = bench_of(rate=5000.0)
    bench.attach("p", "md", admitted(bench, prefilled(bench)))
    bench.sim.run(stop=lambda: bench["p"].worker.counts()["chunks"] > 0)
    bench.sim.cut("p", "md")
    bench.sim.heal("p", "md")
    assert bench.until(m.Have, "md", within=3.0).complete


def test_a_lost_peer_ends_its_transfers() -> None:
    bench = bench_of(rate=2000.0)
    bench.attach("p", "md", admitted(bench, prefilled(bench)))
    bench.sim.run(stop=lambda: received(bench) > 500)
    bench.sim.lose("p", "md")
    counts = bench["p"].worker.counts()
    assert (counts["transfers"], counts["chunks"]) == (0, 0)
    assert bench["md"].worker.counts()["tickets"] == 1, "what has landed stays for another sender"
    bench.release(bench.rid(), 2)
    bench.run(0.1)
    assert bench.idle()


def test_another_incarnation_of_the_target_gets_nothing() -> None:
    bench = bench_of()
    old = admitted(bench, prefilled(bench))
    bench.sim.kill("md")
    bench.join(worker_node("md", m.Role.MAIN, seed=9))
    bench.sim.connect_all()
    bench.attach("p", "md", old)
    missing = bench.until(m.Missing)
    assert missing.ticket == old.ticket
    assert bench["p"].worker.counters["attach_stale_total"] == 1
    assert carried(bench) == 0


def test_a_chain_that_is_not_the_receiver_s_is_not_sent() -> None:
    bench = bench_of()
    prefilled(bench)
    ticket = admitted(bench, bench.rid(7), list(range(600, 643)))
    bench.attach("p", "md", ticket, hashes=hashes_of(IDS))
    bench.until(m.Missing)
    assert bench["p"].worker.counters["attach_chain_mismatch_total"] == 1
    assert carried(bench) == 0


def test_a_target_without_a_session_is_waited_for_and_then_missing() -> None:
    bench = bench_of()
    rid = prefilled(bench)
    ticket = admitted(bench, rid)
    bench.sim.lose("p", "md")
    bench.attach("p", "md", ticket)
    bench.run(1)
    assert not bench.router.of(m.Missing)
    bench.sim.connect("p", "md")
    assert bench.until(m.Have, "md").complete
    again = admitted(bench, rid, [*IDS, *range(20)])
    bench.sim.lose("p", "md")
    bench.prefill("p", rid, [*IDS, *range(20)], greedy(80), term=9)
    bench.attach("p", "md", again)
    bench.until(m.Missing, within=6)
    assert bench["p"].worker.counts()["transfers"] == 0


def test_what_waits_for_a_target_waits_for_its_line_once_the_two_have_met() -> None:
    """Else routers deal the sender no share of it."""
    bench = bench_of(rate=1000.0)
    p = bench["p"].worker
    p.site.line_of = lambda node: "wan" if p.site.peers.get(node) is not None else node
    answer = admitted(bench, prefilled(bench))
    bench.sim.lose("p", "md")
    bench.attach("p", "md", answer)
    bench.run(0.1)
    assert set(p.lines(bench.sim.now)) == {"md"}
    bench.sim.connect("p", "md")
    bench.sim.run(stop=lambda: p.site.peers.get("md") is not None)
    assert set(p.lines(bench.sim.now)) == {"wan"}
    bench.until(m.Have, "md")
    assert set(p.rooms.kv_out.queues.sent) == {"wan"}


def test_a_target_that_comes_back_as_another_is_missing_at_once() -> None:
    bench = bench_of()
    ticket = admitted(bench, prefilled(bench))
    bench.sim.kill("md")
    bench.attach("p", "md", ticket)
    bench.run(0.5)
    bench.join(worker_node("md", m.Role.MAIN, seed=9))
    bench.sim.connect_all()
    bench.until(m.Missing, within=0.5)
    assert bench["p"].worker.counters["attach_stale_total"] == 1


def test_cached_blocks_that_are_promised_to_others_are_not_pinned_for_sending() -> None:
    bench = bench_of()
    rid = prefilled(bench)
    bench.attach("p", "rld", admitted(bench, rid, node="rld"))
    bench.until(m.Have, "rld")
    bench.release(rid, 9)
    bench.run(0.1)
    rld = bench["rld"]
    rld.pool.promise("others", rld.pool.available)
    bench.attach("rld", "md", admitted(bench, bench.rid(2)), hashes=hashes_of(IDS))
    assert bench.until(m.Missing, "rld").first_block == 0
    rld.pool.unpromise("others")


def test_bytes_that_nobody_acknowledges_fail_the_transfer() -> None:
    bench = bench_of(bulk_stall=1.0)
    md = bench["md"]
    bench.sim.spy = lambda source, target, message, payload: None
    ticket = admitted(bench, prefilled(bench))
    md.worker.site.outbox.send = lambda *_: None  # type: ignore[method-assign] # its reports never leave
    bench.attach("p", "md", ticket)
    failed = bench.until(m.Failed, "p", within=5.0)
    assert (failed.reason, failed.ticket, failed.term) == (m.FailReason.STALLED, ticket.ticket, 1)
    assert "acknowledged nothing for 2 s" in failed.detail
    assert bench["p"].worker.counts()["transfers"] == 0


def test_while_the_peer_is_silent_altogether_nothing_stalls() -> None:
    bench = bench_of(rate=5000.0, bulk_stall=1.0)
    bench.attach("p", "md", admitted(bench, prefilled(bench)))
    bench.sim.run(stop=lambda: received(bench) > 500)
    bench.sim.cut("p", "md")
    bench.run(20)
    bench.sim.heal("p", "md")
    assert bench.until(m.Have, "md").complete
    assert not bench.router.of(m.Failed)


def test_a_chunk_s_block_stays_pinned_until_it_is_written() -> None:
    """I6 at the sender: the transfer ends while a write buffer still refers to the block."""
    bench = bench_of()
    rid = prefilled(bench)
    ticket = admitted(bench, rid)
    live = bench.sim.link("p", "md")
    assert live is not None
    live.line.linger = 2.0
    bench.attach("p", "md", ticket)
    p = bench["p"]
    assert bench.sim.run(bench.sim.now + 1, stop=lambda: p.worker.counts()["chunks"] == 1)
    bench.release(rid, 9, "p")
    bench.run(0.01)
    counts = p.worker.counts()
    assert (counts["prefills"], counts["transfers"], counts["chunks"], counts["pins"]) == (0, 0, 1, 1)
    bench.run(3)
    assert p.worker.idle()


def test_a_relay_that_is_complete_sends_to_main_decode() -> None:
    bench = bench_of()
    rid = prefilled(bench)
    bench.attach("p", "rld", admitted(bench, rid, node="rld"))
    bench.until(m.Have, "rld")
    bench.sim.kill("p")
    ticket = admitted(bench, rid)
    bench.attach("rld", "md", ticket)
    assert bench.until(m.Have, "md").complete
    assert bench["rld"].worker.counters["kv_bytes_out_total"] == 10 * BLOCK
    bench.release(rid, 2)
    bench.run(0.2)
    assert bench.idle()


def test_a_relay_that_is_not_complete_says_missing() -> None:
    bench = bench_of()
    rid = bench.rid()
    admitted(bench, rid, node="rld")
    bench.attach("rld", "md", admitted(bench, rid))
    assert bench.until(m.Missing, "rld").first_block == 0


@pytest.mark.parametrize("end", ["complete", "gone"])
def test_an_attach_after_its_ticket_s_end_opens_nothing(end: str) -> None:
    bench = bench_of()
    rid = prefilled(bench)
    ticket = admitted(bench, rid)
    have = m.Have(ticket.ticket, rid, complete=end == "complete", gone=end == "gone")
    p = bench["p"]
    bench.sim.call(p, lambda: p.worker.on_message(bench.sim.now, "md", have, b""))
    bench.attach("p", "md", ticket)
    bench.run(0.2)
    assert p.worker.counts()["transfers"] == 0


def test_reports_from_another_node_than_the_target_are_ignored() -> None:
    bench = bench_of(rate=2000.0)
    rid = prefilled(bench)
    ticket = admitted(bench, rid)
    bench.attach("p", "md", ticket)
    bench.run(0.05)
    p = bench["p"]
    forged = m.Have(ticket.ticket, rid, complete=True)
    bench.sim.call(p, lambda: p.worker.on_message(bench.sim.now, "rld", forged, b""))
    assert p.worker.counts()["transfers"] == 1


@pytest.mark.parametrize(
    "ranges", [((0, 1 << 63, 0), (1, (1 << 64) - 1, 3)), ((0, 0, 1 << 63),), ((0, 5, 5), (77, 0, 4))]
)
def test_ranges_that_cannot_be_do_not_change_what_waits(ranges: tuple[tuple[int, int, int], ...]) -> None:
    """Else a receiver with a fault ends its sender's sessions with routers, whose reports are then no numbers
    of the wire any more.
    """
    bench = bench_of(rate=1000.0)
    answer = admitted(bench, prefilled(bench))
    bench.attach("p", "md", answer)
    bench.sim.run(stop=lambda: bench["p"].worker.counts()["transfers"] == 1)
    p = bench["p"].worker
    p.on_message(bench.sim.now, "md", m.Have(answer.ticket, answer.rid, ranges=ranges), b"")
    [transfer] = p.rooms.kv_out.all()
    assert (transfer.acked_bytes, transfer.total_bytes) == (0, 10 * BLOCK)
    encode(p.rooms.reports.make(bench.sim.now))
