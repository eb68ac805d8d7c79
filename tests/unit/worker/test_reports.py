"""What routers are told without asking: Announce, KV events, load; and drain, flush, stop."""

from __future__ import annotations

import itertools

from benchmarks.simulation.nodes import Node
from shared.kv.hashing import HASH_BYTES
from shared.policy.config import WorkerPolicy
from shared.wire import messages as m
from shared.wire.port import Dial, PeerInfo, Undial
from shared.worker.reports import LINE_APART
from tests.support.mesh import Bench, ScriptedRouter, greedy, hashes_of, worker_node

IDS = list(range(50, 93))


def bench_of(**policy: float) -> Bench:
    return Bench(
        worker_node(
            "p",
            m.Role.PREFILL,
            blocks=30,
            policy=WorkerPolicy(**policy),  # type: ignore[arg-type]
            line_rate=5e6,
            line_gain=1.4512,
        ),
        worker_node("rld", m.Role.RELAY),
        worker_node("md", m.Role.MAIN, blocks=30, line_rate=5e6),
    )


def mirror(bench: Bench, node: str) -> list[bytes]:
    """What a router holds that replays everything from the session's start."""
    held: dict[bytes, None] = {}
    seq = 0
    for source, message, payload in bench.router.got:
        hashes = [payload[at : at + HASH_BYTES] for at in range(0, len(payload), HASH_BYTES)]
        if source != node:
            continue
        if isinstance(message, m.Snapshot):
            assert len(hashes) == message.count
            held, seq = dict.fromkeys(hashes), message.seq
        elif isinstance(message, m.KvEvents):
            assert message.seq == seq + 1, "no gap"
            seq = message.seq
            if message.cleared:
                held = {}
            held |= dict.fromkeys(hashes[: message.stored])
            for hash_ in hashes[message.stored :]:
                del held[hash_]
            assert len(hashes) == message.stored + message.removed
    return sorted(held)


def test_a_mirror_of_the_events_equals_the_pool() -> None:
    bench = bench_of()
    for counter in range(1, 5):
        ids = list(range(100 * counter, 100 * counter + 50))
        bench.prefill("p", bench.rid(counter), ids, greedy(60))
        bench.until(m.TokensOut, nth=counter)
        bench.release(bench.rid(counter), 1, "p")
    bench.run(0.1)
    assert mirror(bench, "p") == sorted(bench["p"].pool.hashes())
    assert len(bench["p"].pool.hashes()) < 4 * 12, "some were evicted"
    bench.send("p", m.SnapshotRequest())
    bench.run(0.1)
    assert mirror(bench, "p") == sorted(bench["p"].pool.hashes())
    bench.send("p", m.Flush())
    bench.run(0.1)
    assert mirror(bench, "p") == sorted(bench["p"].pool.hashes()) == []


def test_a_new_session_gets_announce_and_snapshot() -> None:
    bench = bench_of()
    bench.prefill("p", bench.rid(), IDS, greedy(60))
    bench.until(m.TokensOut)
    bench.sim.lose("r", "p")
    bench.router.got.clear()
    bench.sim.connect("r", "p")
    announce, snapshot = bench.until(m.Announce, "p"), bench.until(m.Snapshot, "p")
    assert (announce.role, announce.peers, announce.draining) == (m.Role.PREFILL, ("md", "rld"), False)
    assert snapshot.count == 10
    assert mirror(bench, "p") == sorted(hashes_of(IDS))


def test_peers_that_come_and_go_are_announced() -> None:
    bench = bench_of()
    bench.run(0.1)
    bench.sim.lose("p", "md")
    bench.run(0.1)
    assert bench.router.of(m.Announce, "p")[-1].peers == ("rld",)


def test_load_reports_come_on_change_and_every_second() -> None:
    bench = bench_of(report_every=1.0)
    times: list[float] = []

    def spy(source: str, target: str, message: m.Message, payload: bytes) -> None:
        if isinstance(message, m.LoadReport) and source == "p":
            times.append(bench.sim.now)

    bench.sim.spy = spy
    bench.run(5)
    assert 5 <= len(times) <= 6, "idle: one a second"
    seqs = [report.seq for report in bench.router.of(m.LoadReport, "p")]
    assert seqs == list(range(1, len(seqs) + 1))
    times.clear()
    for counter in range(1, 40):
        bench.prefill("p", bench.rid(counter), [counter] * 8, greedy(60))
        bench.run(0.02)
        bench.release(bench.rid(counter), 1, "p")
    assert 3 <= len(times) <= 9
    assert min(b - a for a, b in itertools.pairwise(times)) >= 0.1 - 1e-9


def test_a_transfer_that_begins_or_ends_is_told_soon() -> None:
    """Whose turn it is on a line changes then; bytes that were sent meanwhile are told ten times a second."""
    bench = bench_of()
    told: list[tuple[float, int]] = []

    def spy(source: str, target: str, message: m.Message, payload: bytes) -> None:
        if isinstance(message, m.LoadReport) and source == "p":
            told.append((bench.sim.now, message.unsent_bytes.get("md", 0)))

    bench.admit("md", bench.rid(), IDS, greedy(60))
    bench.prefill("p", bench.rid(), IDS, greedy(60))
    bench.until(m.TokensOut)
    bench.run(0.5)
    bench.sim.spy = spy
    began = bench.sim.now
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.run(0.03)
    assert [unsent > 0 for when, unsent in told if when - began <= LINE_APART]
    bench.run(2)
    assert told[-1][1] == 0
    assert min(b - a for (a, _), (b, _) in itertools.pairwise(told)) >= LINE_APART - 1e-9


def test_a_report_says_what_waits_for_which_line() -> None:
    bench = bench_of()
    bench.admit("md", bench.rid(), IDS, greedy(60))
    bench.prefill("p", bench.rid(), IDS, greedy(60))
    bench.sim.cut("p", "md")
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.run(1.5)
    report = bench.router.of(m.LoadReport, "p")[-1]
    size = 10 * bench["p"].worker.site.block_bytes
    assert report.unsent_bytes == {"md": size}
    assert report.smallest_remaining == {"md": size}
    assert report.line_rate == {"md": 5e6}
    assert report.line_gain == {"md": 1.45}
    assert 1000 <= report.oldest_age_ms["md"] <= 1600
    assert (report.send_pinned_blocks, report.pinned_blocks) == (10, 10)
    assert report.free_blocks == 20
    assert report.prefill_rate > 0
    main = bench.router.of(m.LoadReport, "md")[-1]
    assert main.promised_blocks > 10


def test_draining_takes_nothing_new_and_finishes_what_is_there() -> None:
    bench = bench_of()
    rid = bench.rid(1)
    bench.admit("md", rid, IDS, greedy(60))
    bench.feed("md", rid, 3, 43, [], m.Do.OWN)
    bench.until(m.TokensOut)
    md = bench["md"].worker
    bench.sim.call(bench["md"], lambda: md.drain(bench.sim.now))
    bench.admit("md", bench.rid(2), IDS, greedy(60))
    assert bench.until(m.Refused).reason is m.RefuseReason.DRAINING
    assert bench.router.of(m.Announce, "md")[-1].draining
    assert not md.drained
    bench.until(m.Finished)
    bench.release(rid, 3)
    bench.run(0.1)
    assert md.drained


def test_a_relay_that_drains_gives_everything_up() -> None:
    bench = bench_of()
    bench.admit("rld", bench.rid(), IDS, greedy(60))
    bench.until(m.Admitted)
    bench.send("rld", m.Drain(True))
    failed = bench.until(m.Failed)
    assert (failed.rid, failed.reason) == (bench.rid(), m.FailReason.DRAIN)
    bench.run(0.1)
    assert bench["rld"].worker.drained
    bench.send("rld", m.Drain(False))
    bench.admit("rld", bench.rid(2), IDS, greedy(60))
    bench.until(m.Admitted, nth=2)


def test_stop_ends_everything_and_says_so() -> None:
    bench = bench_of()
    bench.admit("md", bench.rid(1), IDS, greedy(60))
    bench.prefill("p", bench.rid(1), IDS, greedy(60))
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.until(m.TokensOut)
    for name in ("p", "md"):
        node = bench[name]
        bench.sim.call(node, lambda worker=node.worker: worker.stop(bench.sim.now))  # type: ignore[misc]
    bench.run(0.1)
    assert {(f.reason) for f in bench.router.of(m.Failed)} == {m.FailReason.DRAIN}
    assert bench.idle()


def test_messages_from_those_who_may_not_send_them_are_counted() -> None:
    bench = bench_of()
    md = bench["md"].worker
    for node, message in (
        ("p", m.Release(bench.rid(), 1)),
        ("r", m.Have(b"x" * 16, bench.rid())),
        ("nobody", m.Flush()),
        ("r", m.Ping(1)),
    ):
        md.on_message(0.0, node, message, b"")
    assert md.counters["unexpected_messages_total"] == 4


def test_a_router_cannot_touch_another_router_s_request() -> None:
    bench = bench_of()
    bench.sim.add(Node("r2", m.Role.ROUTER, ScriptedRouter(), 99))
    bench.sim.connect_all()
    bench.admit("md", bench.rid(), IDS, greedy(60))
    bench.until(m.Admitted)
    md = bench["md"].worker
    md.on_message(bench.sim.now, "r2", m.Release(bench.rid(), 99), b"")
    assert md.counts()["requests"] == 1
    assert md.counters["unexpected_messages_total"] == 1


def test_named_peers_are_dialled_by_who_sends_to_them() -> None:
    bench = bench_of()
    nodes = (
        ("md9", m.Role.MAIN, "b", "h:1"),
        ("md", m.Role.MAIN, "b", "h:2"),
        ("p2", m.Role.PREFILL, "a", "h:3"),
    )
    dialled = {}
    for name in ("p", "md"):
        worker = bench[name].worker
        worker.on_message(0.0, "r", m.Peers(nodes), b"")
        dialled[name] = [i.node for i in worker.take_outbox() if isinstance(i, Dial)]
    assert dialled == {"p": ["md9"], "md": []}, "md is known already"


def test_a_peer_that_moved_is_dialled_where_it_is_now() -> None:
    """Its new process is named while the session of the old one has not ended yet, and not again later."""
    p = worker_node("p", m.Role.PREFILL).worker
    p.on_session(0.0, PeerInfo("r", m.Role.ROUTER, "a", 1))

    def dialled(address: str) -> list[str]:
        p.on_message(0.0, "r", m.Peers((("md", m.Role.MAIN, "b", address),)), b"")
        return [i.address for i in p.take_outbox() if isinstance(i, Dial)]

    assert dialled("h:1") == ["h:1"]
    p.on_session(0.0, PeerInfo("md", m.Role.MAIN, "b", 1))
    assert dialled("h:1") == []
    assert dialled("h:2") == ["h:2"]
    assert dialled("h:2") == []


def test_peers_that_no_router_names_any_more_are_let_go_of() -> None:
    """Else workers that come and go under new names are dialled for ever."""
    p = worker_node("p", m.Role.PREFILL).worker

    def undialled() -> list[str]:
        return [i.node for i in p.take_outbox() if isinstance(i, Undial)]

    def named(router: str, *nodes: str) -> list[str]:
        p.on_message(0.0, router, m.Peers(tuple((one, m.Role.MAIN, "b", "h:1") for one in nodes)), b"")
        return undialled()

    for router in ("r1", "r2"):
        p.on_session(0.0, PeerInfo(router, m.Role.ROUTER, "a", 1))
    assert named("r1", "md1", "md2", "md3") == named("r2", "md1", "md2") == []
    assert named("r1", "md1") == ["md3"], "the other router still names md2"
    p.on_session(0.0, PeerInfo("md2", m.Role.MAIN, "b", 1))
    assert named("r2", "md1") == [], "it is here"
    p.on_lost(0.0, "md2", "gone")
    assert undialled() == ["md2"]
    p.on_lost(0.0, "r2", "gone")
    assert undialled() == [], "a router that is lost says nothing of others"
    assert named("r1") == ["md1"]
    assert named("r1", "md1") == []
    assert named("r1") == ["md1"], "it came and went again"
