"""Alignments and singular requests: what outlives its request, for how long, and what it gives way to."""

from __future__ import annotations

import pytest

from shared.policy.config import WorkerPolicy
from shared.wire import messages as m
from tests.support.mesh import LAYOUT, Bench, greedy, worker_node

BLOCK = LAYOUT.block_bytes
IDS = list(range(50, 93))  # ten full blocks


def bench_of(rate: float, *, p_blocks: int = 256, md_blocks: int = 256, **policy: float) -> Bench:
    settings = WorkerPolicy(**policy)  # type: ignore[arg-type]
    bench = Bench(
        worker_node("p", m.Role.PREFILL, blocks=p_blocks, policy=settings),
        worker_node("md", m.Role.MAIN, blocks=md_blocks, policy=settings),
        worker_node("rld", m.Role.RELAY, blocks=256),
        chunk=256,
    )
    live = bench.sim.link("p", "md")
    assert live is not None
    live.line.rate = rate
    return bench


def ended_before_its_cut(
    bench: Bench,
    *,
    align: bool,
    parked: bool = False,
    ids: list[int] = IDS,
    at: tuple[str, ...] = ("p", "md", "rld"),
) -> m.Rid:
    """A request that a relay finished while main decode's transfer runs, and that was released at these."""
    rid, sampling = bench.rid(), greedy(len(ids) + 4)
    bench.admit("md", rid, ids, sampling, term=3, parked=parked)
    bench.admit("rld", rid, ids, sampling, term=2)
    bench.prefill("p", rid, ids, sampling)
    cls = m.TransferClass.PARKED if parked else m.TransferClass.COVERED
    bench.attach("p", "md", bench.until(m.Admitted, "md"), cls=cls)
    bench.attach("p", "rld", bench.until(m.Admitted, "rld"))
    bench.until(m.Finished, "rld")
    assert not bench.router.of(m.Have, "md")
    if at:
        bench.release(rid, 4, *at, align=align)
    bench.run(0.05)
    return rid


def totals(bench: Bench, name: str, what: str) -> float:
    return bench[name].worker.counters.get(f"alignments_{what}_total", 0.0)


def test_the_transfer_goes_on_without_its_request() -> None:
    bench = bench_of(rate=3000.0)
    ended_before_its_cut(bench, align=True)
    md, p = bench["md"].worker, bench["p"].worker
    assert (md.counts()["requests"], md.counts()["alignments"]) == (0, 1)
    assert (p.counts()["prefills"], p.counts()["alignments"]) == (0, 1)
    assert bench.until(m.Have, "md").complete
    bench.run(0.1)
    assert bench.idle()
    assert bench["md"].pool.cached == 10
    assert (totals(bench, "md", "done"), totals(bench, "p", "done")) == (1, 1)
    assert p.counters["kv_bytes_out_alignment_total"] > 0


def test_without_align_both_ends_drop_the_transfer() -> None:
    bench = bench_of(rate=3000.0)
    ended_before_its_cut(bench, align=False)
    bench.run(0.5)
    assert bench.idle()
    assert totals(bench, "md", "done") == 0


def test_a_singular_request_s_parked_transfer_ends_with_it() -> None:
    bench = bench_of(rate=1000.0)
    ended_before_its_cut(bench, align=False, parked=True)
    bench.run(1)
    assert bench.idle()
    assert bench["p"].worker.counters["kv_bytes_out_uncovered_total"] == 10 * BLOCK, "the relay's"
    assert bench["p"].worker.counters.get("kv_bytes_out_parked_total", 0) < 10 * BLOCK


def test_only_the_prompt_is_aligned() -> None:
    """After a new placement the ticket covers output too; the alignment ends with the prompt."""
    bench = bench_of(rate=3000.0)
    rid, sampling = bench.rid(), greedy(80)
    bench.admit("md", rid, IDS, sampling, term=3, prompt_len=18)
    bench.prefill("p", rid, IDS, sampling, prompt_len=18)
    bench.attach("p", "md", bench.until(m.Admitted, "md"))
    bench.until(m.TokensOut)
    bench.release(rid, 4, align=True)
    have = bench.until(m.Have, "md")
    assert have.complete
    assert 4 <= have.published < 10
    bench.run(0.2)
    assert bench.idle()


@pytest.mark.parametrize("side", ["p", "md"])
def test_one_that_is_too_large_is_dropped_and_counted(side: str) -> None:
    bench = bench_of(rate=1000.0, **{f"{side}_blocks": 60})  # 10% of 60 blocks
    ended_before_its_cut(bench, align=True)
    bench.run(0.5)
    assert totals(bench, side, "dropped") == 1
    if side == "md":
        assert bench.until(m.Have, "md").gone
    else:
        bench.until(m.Missing, "p")
        bench.run(61)
    assert bench.idle()


def test_one_that_takes_too_long_is_dropped_by_both_ends() -> None:
    bench = bench_of(rate=100.0, align_most=5.0)
    ended_before_its_cut(bench, align=True)
    bench.run(5.2)
    assert bench.idle()
    assert bench.router.of(m.Have, "md")[0].gone
    assert totals(bench, "md", "dropped") + totals(bench, "p", "dropped") >= 1
    assert totals(bench, "md", "done") == 0


@pytest.mark.parametrize("rate", [3000.0, 1.0], ids=["under_way", "nothing_sent"])
def test_it_ends_with_its_sender(rate: float) -> None:
    """No router would ask again: waiting for its time to be over would only keep blocks from others."""
    bench = bench_of(rate=rate)
    ended_before_its_cut(bench, align=True)
    assert bench["md"].worker.counts()["alignments"] == 1
    bench.sim.kill("p")
    bench.sim.run(bench.sim.now + 60, stop=bench["md"].worker.idle)
    assert bench.sim.now < 55
    assert bench["md"].worker.idle()
    assert totals(bench, "md", "dropped") == 1


@pytest.mark.parametrize("how", ["dropped", "lost"])
def test_a_sender_that_gave_up_before_the_receiver_was_told_of_the_alignment(how: str) -> None:
    """P hears of the end before main decode does, and its word travels faster than the router's."""
    bench = bench_of(rate=1500.0, align_fraction=0.01, md_blocks=5000)
    rid = ended_before_its_cut(bench, align=True, at=("p",) if how == "dropped" else ())
    assert bench["md"].worker.counts()["requests"] == 1
    if how == "lost":
        bench.run(0.3)  # some chunks have come
        bench.sim.kill("p")
    bench.run(0.2)
    assert bench["p"].worker.counts()["alignments"] == 0 or how == "lost"
    bench.release(rid, 4, "md", align=True)
    bench.run(0.2)
    assert bench["md"].worker.idle()
    assert totals(bench, "md", "dropped") == 1


def test_it_gives_way_to_a_request_that_needs_its_blocks() -> None:
    bench = bench_of(rate=100.0, md_blocks=40, align_fraction=0.5, unlanded_fraction=1.0)
    ended_before_its_cut(bench, align=True)
    assert bench["md"].worker.counts()["alignments"] == 1
    ids = list(range(500, 640))
    bench.admit("md", bench.rid(2), ids, greedy(142))
    bench.until(m.Admitted, "md", nth=2)
    assert bench["md"].worker.counts()["alignments"] == 0
    assert totals(bench, "md", "dropped") == 1
    bench.run(0.5)
    assert bench["p"].worker.counts()["transfers"] == 0


def test_it_gives_way_to_a_prefill_that_needs_its_blocks() -> None:
    bench = bench_of(rate=100.0, p_blocks=30, align_fraction=0.5, attach_wait=0.2)
    ended_before_its_cut(bench, align=True)
    assert bench["p"].worker.counts()["alignments"] == 1
    bench.prefill("p", bench.rid(2), list(range(500, 610)), greedy(142))
    bench.until(m.Missing, "p")
    bench.sim.run(bench.sim.now + 1, stop=lambda: bool(bench.rows(bench.rid(2))))
    assert bench.rows(bench.rid(2))
    assert totals(bench, "p", "dropped") == 1


def test_urgent_work_goes_before_it_on_the_line() -> None:
    bench = bench_of(rate=3000.0)
    ended_before_its_cut(bench, align=True)
    other = list(range(500, 543))
    bench.admit("md", bench.rid(2), other, greedy(60), term=3)
    bench.prefill("p", bench.rid(2), other, greedy(60))
    bench.attach("p", "md", bench.until(m.Admitted, "md", nth=2))
    assert bench.until(m.Have, "md").rid == bench.rid(2)
    assert bench.until(m.Have, "md", nth=2).rid == bench.rid(1)


def test_an_urgent_request_takes_over_blocks_that_an_alignment_was_to_bring() -> None:
    bench = bench_of(rate=1500.0)
    ended_before_its_cut(bench, align=True)
    bench.admit("md", bench.rid(2), IDS, greedy(60), term=3)
    admitted = bench.until(m.Admitted, "md", nth=2)
    assert admitted.expected == 0, "it does not wait for what is only sent when the line is idle"
    bench.prefill("p", bench.rid(2), IDS, greedy(60))
    bench.attach("p", "md", admitted)
    assert any(
        have.rid == bench.rid(2) for have in (bench.until(m.Have, "md"), bench.until(m.Have, "md", nth=2))
    )
    bench.release(bench.rid(2), 9)
    bench.run(1)
    assert bench.idle()
