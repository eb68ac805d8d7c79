"""Prefill requests: the four states an Attach can meet, the one id, holds, refusals, ends."""

from __future__ import annotations

import pytest

from benchmarks.simulation.nodes import Node
from shared.engine.api import StepPlan, StepResult, step_failed
from shared.engine.synthetic import SyntheticTiming, synthetic_run
from shared.errors import NanLogits
from shared.kv.hashing import pack_ids
from shared.policy.config import WorkerPolicy
from shared.wire import messages as m
from shared.worker.asked import params_of
from shared.worker.sources import SourceState
from tests.support.mesh import VOCAB, Bench, ScriptedRouter, greedy, hashes_of, worker_node

IDS = list(range(50, 93))  # ten full blocks and three ids


def bench_of(
    blocks: int = 64,
    *,
    token: float = 0.001,
    line_rate: float = 0.0,
    line_gain: float = 1.0,
    chunk: int = 4096,
    **policy: float,
) -> Bench:
    settings = {"max_running": 2, "max_queued": 4, "max_chunk_tokens": 8, **policy}
    p = worker_node(
        "p",
        m.Role.PREFILL,
        blocks=blocks,
        policy=WorkerPolicy(**settings),  # type: ignore[arg-type]
        timing=SyntheticTiming(step=0.001, token=token),
        line_rate=line_rate,
        line_gain=line_gain,
    )
    others = worker_node("md", m.Role.MAIN, blocks=256), worker_node("rld", m.Role.RELAY, blocks=256)
    return Bench(p, *others, chunk=chunk)


def state(bench: Bench, rid: m.Rid) -> SourceState:
    return bench["p"].worker.rooms.prefilling.state(rid)


def at(bench: Bench, rid: m.Rid, wanted: SourceState) -> None:
    assert bench.sim.run(bench.sim.now + 5, stop=lambda: state(bench, rid) is wanted)


@pytest.mark.parametrize("wanted", list(SourceState))
def test_attach_at_every_state(wanted: SourceState) -> None:
    bench = bench_of(max_running=1)
    rid = bench.rid(1)
    if wanted is SourceState.QUEUED:
        bench.prefill("p", bench.rid(9), list(range(500, 580)), greedy(81))
    bench.admit("md", rid, IDS, greedy(50))
    bench.prefill("p", rid, IDS, greedy(50))
    admitted = bench.until(m.Admitted)
    if wanted is SourceState.GONE:
        bench.until(m.TokensOut, "p")
        bench.release(rid, 1, "p")
        bench.run(0.1)
    at(bench, rid, wanted)
    bench.attach("p", "md", admitted, hashes=hashes_of(IDS) if wanted is SourceState.GONE else ())
    assert bench.until(m.Have, "md").complete
    assert not bench.router.of(m.Missing)
    for counter in (1, 9):
        bench.release(bench.rid(counter), 2)
    bench.run(0.2)
    assert bench.idle()


def test_blocks_leave_while_the_rest_is_computed() -> None:
    bench = bench_of(token=0.01)
    rid = bench.rid()
    bench.admit("md", rid, IDS, greedy(50))
    bench.prefill("p", rid, IDS, greedy(50))
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.sim.run(stop=lambda: bench["md"].worker.counters.get("kv_bytes_in_total", 0) > 0)
    assert state(bench, rid) is SourceState.RUNNING
    assert not bench.rows(rid)


def test_cached_blocks_of_a_queued_prefill_leave_before_it_starts() -> None:
    bench = bench_of(max_running=1)
    bench.prefill("p", bench.rid(1), IDS, greedy(50))
    bench.until(m.TokensOut)
    bench.release(bench.rid(1), 1, "p")
    bench.prefill("p", bench.rid(2), list(range(500, 600)), greedy(101))
    bench.prefill("p", bench.rid(3), [*IDS, 1, 2, 3, 4, 5], greedy(60))
    bench.admit("md", bench.rid(3), [*IDS, 1, 2, 3, 4, 5], greedy(60))
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.sim.run(stop=lambda: bench["md"].worker.counters.get("kv_bytes_in_total", 0) > 0)
    assert state(bench, bench.rid(3)) is SourceState.QUEUED
    assert bench.until(m.Have, "md").complete


def test_one_id_and_first_to_the_relay() -> None:
    bench = bench_of()
    rid, sampling = bench.rid(), greedy(60, logprobs=1)
    bench.admit("rld", rid, IDS, sampling)
    bench.prefill("p", rid, IDS, sampling, term=4)
    bench.attach("p", "rld", bench.until(m.Admitted))
    bench.until(m.TokensOut, "p")
    bench.run(0.05)
    (row,) = bench.rows(rid, "p")
    (first,) = synthetic_run(IDS, params_of(sampling), VOCAB, len(IDS), 1)
    assert (row.term, row.start, row.ids) == (4, 43, (first,))
    assert row.logprobs is not None
    assert bench.rows(rid, "rld")[0].logprobs == row.logprobs
    bench.send("p", m.Resume(rid, 43))
    bench.run(0.05)
    assert len(bench.rows(rid, "p")) == 2
    bench.send("p", m.Resume(rid, 44))
    bench.run(0.05)
    assert len(bench.rows(rid, "p")) == 2


def test_the_router_learns_how_long_a_prefill_waited() -> None:
    bench = bench_of(max_running=1, token=0.01)
    first, second = list(range(100, 140)), list(range(200, 240))
    bench.prefill("p", bench.rid(1), first, greedy(50))
    bench.prefill("p", bench.rid(2), second, greedy(50))
    bench.until(m.TokensOut, nth=2)
    rows = [row for out in bench.router.of(m.TokensOut) for row in out.rows]
    assert [row.rid.counter for row in rows] == [1, 2]
    assert rows[0].waited_ms <= 1
    assert rows[1].waited_ms >= 400, "40 tokens of the first, 10 ms each"
    for counter in (1, 2):
        bench.release(bench.rid(counter), 1, "p")
    bench.run(0.2)
    assert bench.idle()


def test_a_finished_prefill_waits_for_an_attach_and_then_is_cache() -> None:
    bench = bench_of(blocks=20, attach_wait=1.0)
    rid = bench.rid()
    bench.prefill("p", rid, IDS, greedy(50))
    bench.until(m.TokensOut)
    bench.run(0.8)
    assert bench["p"].worker.counts()["send_pins"] == 10
    bench.run(0.3)
    assert bench["p"].pool.pinned == 0
    assert state(bench, rid) is SourceState.DONE
    bench.admit("md", rid, IDS, greedy(50))
    admitted = bench.until(m.Admitted)
    bench.prefill("p", bench.rid(2), list(range(200, 272)), greedy(80))
    bench.until(m.TokensOut, nth=2)
    bench.attach("p", "md", admitted)
    missing = bench.until(m.Missing)
    assert (missing.rid, missing.ticket) == (rid, admitted.ticket)
    assert missing.first_block < 10
    assert bench["p"].worker.counts()["transfers"] == 0


def test_a_relay_that_is_attached_after_main_decode_finds_the_cached_part_too() -> None:
    bench = bench_of()
    rid = bench.rid(1)
    bench.admit("md", bench.rid(5), IDS[:20], greedy(21))
    bench.feed("md", bench.rid(5), 3, 20, [], m.Do.OWN)
    bench.until(m.Finished, "md")
    bench.admit("md", rid, IDS, greedy(50))
    bench.prefill("p", rid, IDS, greedy(50))
    bench.until(m.TokensOut, "p")
    main = bench.until(m.Admitted, "md", nth=2)
    assert main.have == 5
    bench.attach("p", "md", main)
    bench.send("p", m.Flush())
    bench.admit("rld", rid, IDS, greedy(50))
    bench.attach("p", "rld", bench.until(m.Admitted, "rld"))
    assert bench.until(m.Have, "rld").complete


def test_a_hold_that_only_a_relay_could_want_makes_room() -> None:
    bench = bench_of(blocks=20)
    rid = bench.rid(1)
    bench.admit("md", rid, IDS, greedy(50))
    bench.prefill("p", rid, IDS, greedy(50))
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.until(m.Have, "md")
    bench.until(m.TokensOut)
    assert bench["p"].worker.counts()["send_pins"] == 10
    bench.prefill("p", bench.rid(2), list(range(200, 272)), greedy(80))
    bench.sim.run(bench.sim.now + 1.0, stop=lambda: bool(bench.rows(bench.rid(2))))
    assert bench.rows(bench.rid(2))


def test_refuses_what_never_fits_and_what_does_not_fit_now() -> None:
    bench = bench_of(blocks=12, max_queued=1, token=0.1)
    bench.prefill("p", bench.rid(1), list(range(5000)), greedy(5001))
    assert bench.until(m.Refused).reason is m.RefuseReason.TOO_LONG
    bench.prefill("p", bench.rid(2), list(range(49)), greedy(60))
    refused = bench.until(m.Refused, nth=2)
    assert (refused.reason, refused.detail) == (m.RefuseReason.TOO_LONG, "13 blocks; the pool has 12")
    for counter in (3, 4, 5):
        bench.prefill("p", bench.rid(counter), list(range(40)), greedy(60))
    refused = bench.until(m.Refused, nth=3)
    assert (refused.rid, refused.reason) == (bench.rid(5), m.RefuseReason.QUEUE_FULL)
    bench.prefill("p", bench.rid(6), [], greedy(60))
    assert bench.until(m.Refused, nth=4).reason is m.RefuseReason.BAD_REQUEST


@pytest.mark.parametrize("gain", [1.0, 1.25])
def test_large_deltas_are_refused_while_too_much_waits_for_the_line(gain: float) -> None:
    bench = bench_of(blocks=64, line_rate=1000.0, line_gain=gain, send_pin_fraction=0.1)
    bench.sim.cut("p", "md")
    bench.admit("md", bench.rid(1), IDS, greedy(50))
    bench.prefill("p", bench.rid(1), IDS, greedy(50))
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.until(m.TokensOut)
    bench.prefill("p", bench.rid(2), list(range(300, 340)), greedy(50))
    refused = bench.until(m.Refused)
    assert refused.reason is m.RefuseReason.LINE_BACKLOG
    assert refused.retry_after_ms == 10 * 256 / gain, "backlog / rate"
    bench.prefill("p", bench.rid(3), [*IDS, 1], greedy(50))
    bench.sim.run(bench.sim.now + 1, stop=lambda: bool(bench.rows(bench.rid(3))))
    assert bench.rows(bench.rid(3)), "what is cached needs no new pins"


def test_release_while_it_computes_ends_it_and_counts_the_waste() -> None:
    bench = bench_of(token=0.01)
    rid = bench.rid()
    bench.admit("md", rid, IDS, greedy(50))
    bench.prefill("p", rid, IDS, greedy(50))
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.run(0.2)
    assert state(bench, rid) is SourceState.RUNNING
    bench.release(rid, 2)
    bench.run(0.3)
    assert bench.idle()
    assert bench["p"].worker.counters["prefill_wasted_tokens_total"] > 0
    assert not bench.rows(rid)


def test_release_while_it_waits_ends_it() -> None:
    bench = bench_of(max_running=1, token=0.01)
    for counter in (1, 2):
        bench.prefill("p", bench.rid(counter), [*IDS, counter], greedy(60))
    bench.run(0.02)
    bench.release(bench.rid(2), 1, "p")
    bench.until(m.TokensOut)
    bench.release(bench.rid(1), 1, "p")
    bench.run(1)
    assert bench.idle()
    assert not bench.rows(bench.rid(2))


def test_urgent_prefills_start_first() -> None:
    bench = bench_of(max_running=1)
    for counter, priority in ((1, 0), (2, 5), (3, 1)):
        bench.prefill("p", bench.rid(counter), [*IDS, counter], greedy(60), priority=priority)
    bench.until(m.TokensOut, nth=3)
    order = [row.rid.counter for message in bench.router.of(m.TokensOut) for row in message.rows]
    assert order == [1, 3, 2]


def test_equal_prompts_that_come_at_once_are_computed_once() -> None:
    bench = bench_of(blocks=200, max_running=8, max_queued=8)
    for counter in range(1, 9):
        bench.prefill("p", bench.rid(counter), IDS, greedy(60, temperature=1.0, seed=counter))
    bench.sim.run(stop=lambda: all(bench.rows(bench.rid(counter)) for counter in range(1, 9)))
    assert bench["p"].worker.site.engine.stats.computed_tokens <= 43 + 7 * 3
    assert len({bench.rows(bench.rid(counter))[0].ids for counter in range(1, 9)}) > 4, "each its own id"


def test_what_another_prefill_gave_up_is_made_by_the_next() -> None:
    bench = bench_of(blocks=200, token=0.01)
    for counter in (1, 2):
        bench.prefill("p", bench.rid(counter), [*IDS, counter], greedy(60))
    bench.run(0.2)
    assert state(bench, bench.rid(2)) is SourceState.QUEUED
    bench.release(bench.rid(1), 1, "p")
    bench.until(m.TokensOut)
    assert bench.rows(bench.rid(2))
    assert bench["p"].worker.site.engine.stats.computed_tokens < 44 + 16
    bench.release(bench.rid(2), 1, "p")
    bench.run(0.1)
    assert bench.idle()


def test_a_silent_router_s_prefill_keeps_nobody_waiting() -> None:
    bench = bench_of(blocks=200, token=0.1)
    other = ScriptedRouter()
    node = bench.sim.add(Node("r2", m.Role.ROUTER, other, 99))
    bench.sim.connect_all()
    message = m.Prefill(m.Rid(99, 1), 1, b"", 0, 43, greedy(60), 600_000)
    other.send("p", message, pack_ids(IDS))
    bench.sim.perform(node)
    bench.run(0.3)
    bench.prefill("p", bench.rid(), IDS, greedy(60))
    bench.run(0.1)
    bench.sim.cut("p", "r2")
    bench.until(m.TokensOut)


def test_prefill_again_under_a_newer_term_starts_anew() -> None:
    bench = bench_of(token=0.01)
    rid, sampling = bench.rid(), greedy(60)
    bench.prefill("p", rid, IDS, sampling, term=1)
    bench.run(0.1)
    longer = [*IDS, 7, 8]
    bench.prefill("p", rid, longer, sampling, term=5, prompt_len=43)
    bench.prefill("p", rid, IDS, sampling, term=2)
    bench.until(m.TokensOut)
    bench.run(0.5)
    (row,) = bench.rows(rid)
    assert (row.term, row.start) == (5, 45)
    assert bench["p"].worker.counters["old_term_total"] == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(NanLogits("no finite score"), m.FailReason.NAN), (RuntimeError("layer 3"), m.FailReason.INTERNAL)],
)
def test_a_forward_that_fails_fails_its_requests_only(error: Exception, reason: m.FailReason) -> None:
    bench = bench_of()
    calls = 0

    def tamper(node: object, plan: StepPlan, result: StepResult) -> StepResult:
        nonlocal calls
        calls += 1
        return step_failed(plan, error, result.seconds) if calls == 2 else result

    bench.sim.tamper = tamper
    bench.admit("md", bench.rid(1), IDS, greedy(50))
    bench.prefill("p", bench.rid(1), IDS, greedy(50))
    bench.attach("p", "md", bench.until(m.Admitted))
    failed = bench.until(m.Failed, "p")
    assert (failed.rid, failed.term, failed.reason) == (bench.rid(1), 1, reason)
    assert str(error) in failed.detail
    bench.release(bench.rid(1), 2)
    bench.prefill("p", bench.rid(2), IDS, greedy(50))
    bench.until(m.TokensOut, "p")
    bench.release(bench.rid(2), 2)
    bench.run(0.2)
    assert bench.idle()


def test_nobody_s_prefill_ends_by_its_own_timer() -> None:
    bench = bench_of()
    bench.prefill("p", bench.rid(), IDS, greedy(50), remaining=1.0)
    assert bench.until(m.Failed, "p", within=7).reason is m.FailReason.TIMEOUT
    assert bench.idle()


def test_the_last_block_that_comes_free_is_one_that_was_being_written() -> None:
    """Its request is over; only the socket has still to let go of it, and nothing else happens: the receiver
    has said already that it wants no more.
    """
    bench = bench_of(blocks=16, chunk=64)
    live = bench.sim.link("p", "md")
    assert live is not None
    live.line.rate = 640.0  # a tenth of a second for each chunk
    first, second, counts = bench.rid(1), bench.rid(2), bench["p"].worker.counts
    bench.admit("md", first, IDS, greedy(50))
    bench.prefill("p", first, IDS, greedy(50))
    bench.until(m.TokensOut, "p")
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.sim.run(stop=lambda: bench["p"].worker.counters.get("kv_bytes_out_total", 0.0) >= 5 * 64)
    bench.release(first, 9)
    bench.prefill("p", second, list(range(200, 264)), greedy(70))  # all of the pool
    bench.run(0.05)
    assert (state(bench, second), counts()["chunks"]) == (SourceState.QUEUED, 1)
    bench.sim.run(stop=lambda: not counts()["chunks"])
    at(bench, second, SourceState.RUNNING)
