"""A silent or lost router: its requests stop, go on, or end; others are not touched."""

from __future__ import annotations

import pytest

from benchmarks.simulation.nodes import Node
from shared.engine.synthetic import SyntheticTiming
from shared.policy.config import WorkerPolicy
from shared.wire import messages as m
from shared.worker.part import Stage
from tests.support.mesh import Bench, ScriptedRouter, greedy, worker_node

SLOW = SyntheticTiming(step=0.02)


def bench_of() -> Bench:
    return Bench(
        worker_node("md", m.Role.MAIN, blocks=300, timing=SLOW),
        worker_node("p", m.Role.PREFILL, blocks=300, policy=WorkerPolicy(max_chunk_tokens=4), timing=SLOW),
    )


def decoding(bench: Bench, tokens: int = 1000) -> m.Rid:
    rid = bench.rid()
    bench.admit("md", rid, [1, 2, 3], greedy(3 + tokens))
    bench.feed("md", rid, 3, 3, [], m.Do.OWN)
    bench.until(m.TokensOut)
    return rid


def made(bench: Bench, rid: m.Rid) -> int:
    part = bench["md"].worker.rooms.decoding.get(rid)
    return 0 if part is None else part.made


def test_it_stops_after_two_seconds_and_goes_on_when_the_router_is_back() -> None:
    bench = bench_of()
    rid = decoding(bench)
    bench.sim.cut("r", "md")
    bench.run(1.9)
    before = made(bench, rid)
    assert before > 50, "a short silence costs nothing"
    bench.run(0.2)
    stopped = made(bench, rid)
    bench.run(5)
    assert made(bench, rid) == stopped
    assert bench["md"].pool.pinned > 0, "KV is kept"
    bench.sim.heal("r", "md")
    bench.run(0.2)
    assert made(bench, rid) > stopped
    ids = bench.output(rid, 3)
    assert len(ids) > stopped, "everything arrives once"


def test_it_ends_with_the_lease() -> None:
    bench = bench_of()
    rid = decoding(bench)
    bench.sim.cut("r", "md")
    bench.run(39)
    assert made(bench, rid) > 0
    bench.run(2)
    assert bench["md"].worker.idle()


@pytest.mark.parametrize("away", [0.5, 3.0])
def test_a_session_lost_and_opened_again_does_not_start_what_nobody_asks_for(away: float) -> None:
    bench = bench_of()
    rid = decoding(bench)
    log = bench.output(rid, 3)
    bench.sim.lose("r", "md")
    bench.run(away)
    bench.sim.connect("r", "md")
    bench.run(0.1)
    stopped = made(bench, rid)
    bench.run(3)
    assert made(bench, rid) == stopped
    bench.feed("md", rid, 5, 3, log, m.Do.OWN)
    bench.run(0.5)
    assert made(bench, rid) > stopped, "asked for again it goes on"
    assert bench.rows(rid, term=5)[0].start == 3 + len(log)
    bench.run(60)
    assert made(bench, rid) > stopped, "and outlives the lease"


def test_what_is_not_asked_for_again_ends_with_the_lease() -> None:
    bench = bench_of()
    decoding(bench)
    bench.sim.lose("r", "md")
    bench.run(3)
    bench.sim.connect("r", "md")
    bench.run(38)
    assert bench["md"].worker.idle()


def test_what_is_not_asked_for_again_ends_though_the_router_was_silent_in_between() -> None:
    bench = bench_of()
    decoding(bench)
    bench.sim.lose("r", "md")
    bench.run(3)
    bench.sim.connect("r", "md")
    bench.sim.cut("r", "md")
    bench.run(3)
    bench.sim.heal("r", "md")
    bench.run(38)
    assert bench["md"].worker.idle()


def test_each_silence_has_a_lease_of_its_own() -> None:
    bench = bench_of()
    bench.sim.lose("r", "md")
    bench.run(1)
    bench.sim.connect("r", "md")
    bench.run(36)
    rid = decoding(bench)
    bench.sim.cut("r", "md")
    bench.run(4)  # 41 s after the session was lost
    bench.sim.heal("r", "md")
    before = made(bench, rid)
    bench.run(0.5)
    assert made(bench, rid) > before > 0


def test_a_silence_that_goes_on_ends_what_it_began_with_and_what_came_before() -> None:
    bench = bench_of()
    bench.sim.lose("r", "md")
    bench.run(1)
    bench.sim.connect("r", "md")
    decoding(bench)
    bench.run(10)
    bench.sim.cut("r", "md")
    bench.run(39)
    assert not bench["md"].worker.idle()
    bench.run(2)
    assert bench["md"].worker.idle()


def test_another_incarnation_is_the_death_of_the_old_one_at_once() -> None:
    bench = bench_of()
    decoding(bench)
    bench.prefill("p", bench.rid(), list(range(900)), greedy(1000))
    bench.run(0.05)
    bench.sim.kill("r")
    bench.sim.add(Node("r", m.Role.ROUTER, ScriptedRouter(), 78))
    bench.sim.connect_all()
    bench.run(0.05)
    assert bench.idle()


def test_another_router_s_requests_go_on() -> None:
    bench = bench_of()
    other = ScriptedRouter()
    node = bench.sim.add(Node("r2", m.Role.ROUTER, other, 99))
    bench.sim.connect_all()
    rid = m.Rid(99, 1)
    other.send("md", m.Admit(rid, 1, b"", 0, 1, greedy(1000), 600_000), b"\1\0\0\0")
    other.send("md", m.Feed(rid, 2, 1, m.Do.OWN))
    bench.sim.perform(node)
    decoding(bench)
    bench.sim.cut("r", "md")
    bench.run(4)
    first = made(bench, rid)
    bench.run(1)
    assert made(bench, rid) > first


def test_what_would_start_while_the_router_is_silent_waits_for_it() -> None:
    """The blocks and P's id arrive though the router does not answer: the relay does not decode into the
    void.
    """
    bench = Bench(
        worker_node("p", m.Role.PREFILL, timing=SLOW, policy=WorkerPolicy(max_chunk_tokens=1)),
        worker_node("rld", m.Role.RELAY, timing=SLOW),
    )
    rid, ids = bench.rid(), list(range(130))  # 2.6 s of prefill
    bench.admit("rld", rid, ids, greedy(200))
    bench.prefill("p", rid, ids, greedy(200))
    bench.attach("p", "rld", bench.until(m.Admitted))
    bench.run(0.1)
    bench.sim.cut("r", "rld")
    bench.run(4)
    part = bench["rld"].worker.rooms.decoding.get(rid)
    assert part is not None
    assert (part.stage, part.made) == (Stage.OWNING, 1)
    bench.sim.heal("r", "rld")
    bench.run(0.5)
    assert part.made > 10


def test_a_prefill_stops_too() -> None:
    bench = bench_of()
    bench.prefill("p", bench.rid(), list(range(1000)), greedy(1001))
    bench.run(0.1)
    bench.sim.cut("r", "p")
    bench.run(2.1)
    tokens = bench["p"].worker.site.engine.stats.computed_tokens
    assert 0 < tokens < 1000
    bench.run(2)
    assert bench["p"].worker.site.engine.stats.computed_tokens == tokens
    bench.sim.heal("r", "p")
    bench.until(m.TokensOut)
