"""Admit at a decoder: what it answers, what it promises, what it refuses, and what coming again means."""

from __future__ import annotations

import pytest

from shared.policy.config import WorkerPolicy
from shared.wire import messages as m
from tests.support.mesh import BLOCK_TOKENS, Bench, greedy, hashes_of, worker_node


def bench_of(blocks: int = 64, **policy: float) -> Bench:
    settings = {"max_running": 8, "max_queued": 8, "growth_tokens": 8, **policy}
    md = worker_node("md", m.Role.MAIN, blocks=blocks, policy=WorkerPolicy(**settings), max_context=400)  # type: ignore[arg-type]
    return Bench(worker_node("p", m.Role.PREFILL, blocks=128, max_context=400), md)


def answers(bench: Bench) -> list[m.Admitted | m.Refused]:
    return [msg for _, msg, _ in bench.router.got if isinstance(msg, m.Admitted | m.Refused)]


@pytest.mark.parametrize(
    ("length", "max_tokens", "growth"),
    [
        (10, 1, 1),  # the tail; the id drawn last has no KV
        (10, 2, 1),
        (11, 3, 2),  # 13 tokens with KV
        (12, 1, 1),  # nothing left to extend: the last block is computed again in a private one
        (12, 100, 3),  # growth_tokens bounds the output counted: 19 tokens, and the copy
    ],
)
def test_promises_what_is_missing_and_its_growth(length: int, max_tokens: int, growth: int) -> None:
    bench = bench_of()
    ids = list(range(length))
    bench.admit("md", bench.rid(), ids, greedy(length + max_tokens))
    admitted = bench.until(m.Admitted)
    full = length // BLOCK_TOKENS
    assert (admitted.have, admitted.expected, admitted.upto, admitted.term) == (0, 0, full, 2)
    assert admitted.last_hash == hashes_of(ids)[-1]
    assert admitted.incarnation == bench["md"].incarnation
    assert len(admitted.ticket) == 16
    assert bench["md"].pool.promised_total == full + growth


def test_nothing_missing_is_complete_at_once() -> None:
    bench = bench_of()
    bench.admit("md", bench.rid(), [1, 2, 3], greedy(10))
    admitted = bench.until(m.Admitted)
    assert (admitted.ticket, admitted.upto, admitted.last_hash) == (b"", 0, b"")
    have = bench.until(m.Have)
    assert (have.ticket, have.rid, have.complete) == (b"", bench.rid(), True)
    order = [type(msg) for _, msg, _ in bench.router.got if isinstance(msg, m.Admitted | m.Have)]
    assert order == [m.Admitted, m.Have]


def test_what_is_cached_is_pinned_and_not_promised() -> None:
    bench = bench_of()
    ids = list(range(20))
    bench.admit("md", bench.rid(1), ids, greedy(22))
    bench.feed("md", bench.rid(1), 3, 20, [], m.Do.OWN)
    bench.until(m.Finished)
    bench.release(bench.rid(1), 3, "md")
    bench.run(0.1)
    assert bench["md"].pool.pinned == 0
    bench.admit("md", bench.rid(2), [*ids[:16], 99, 98, 97, 96, 95], greedy(24))
    admitted = bench.until(m.Admitted, nth=2)
    assert (admitted.have, admitted.upto) == (4, 5)
    assert bench["md"].pool.pinned == 4
    assert bench["md"].pool.promised_total == 2


@pytest.mark.parametrize(
    ("ids", "prompt_len", "max_pos", "detail"),
    [
        ([], 0, 5, "no ids"),
        ([1, 2], 0, 5, "prompt_len 0"),
        ([1, 2], 3, 5, "prompt_len 3"),
        ([1, 2], 2, 2, "max_pos 2"),
    ],
)
def test_refuses_what_makes_no_sense(ids: list[int], prompt_len: int, max_pos: int, detail: str) -> None:
    bench = bench_of()
    bench.admit("md", bench.rid(), ids, greedy(max_pos), prompt_len=prompt_len)
    refused = bench.until(m.Refused)
    assert (refused.reason, refused.term) == (m.RefuseReason.BAD_REQUEST, 2)
    assert detail in refused.detail
    assert bench.idle()


def test_refuses_ids_cut_in_the_middle() -> None:
    bench = bench_of()
    message = m.Admit(bench.rid(), 2, b"", 0, 1, greedy(9), 1000)
    bench.send("md", message, b"12345")
    assert "multiple of 4" in bench.until(m.Refused).detail


def test_a_role_refuses_what_is_not_its_work() -> None:
    bench = bench_of()
    bench.admit("p", bench.rid(1), [1, 2], greedy(9))
    bench.prefill("md", bench.rid(2), [1, 2], greedy(9))
    bench.until(m.Refused, nth=2)
    assert {r.reason for r in bench.router.of(m.Refused)} == {m.RefuseReason.BAD_REQUEST}


def test_refuses_for_ever_what_never_fits() -> None:
    bench = bench_of(blocks=10)
    bench.admit("md", bench.rid(1), list(range(401)), greedy(402))
    assert "context is 400" in bench.until(m.Refused).detail
    bench.admit("md", bench.rid(2), list(range(39)), greedy(50))
    refused = bench.until(m.Refused, nth=2)
    assert (refused.reason, refused.retry_after_ms) == (m.RefuseReason.TOO_LONG, 0)
    assert "the pool has 10" in refused.detail


def test_refuses_for_now_what_does_not_fit_now() -> None:
    bench = bench_of(blocks=20, unlanded_fraction=1.0)
    bench.admit("md", bench.rid(1), list(range(40)), greedy(48))
    bench.until(m.Admitted)
    bench.admit("md", bench.rid(2), list(range(100, 140)), greedy(148))
    refused = bench.until(m.Refused)
    assert refused.reason is m.RefuseReason.NO_BLOCKS
    assert refused.retry_after_ms > 0
    bench.release(bench.rid(1), 2, "md")
    bench.admit("md", bench.rid(2), list(range(100, 140)), greedy(148), term=3)
    assert bench.until(m.Admitted, nth=2).term == 3


def test_bounds_what_has_not_landed_but_for_one_request_of_any_size() -> None:
    bench = bench_of(blocks=40)
    bench.admit("md", bench.rid(1), list(range(100)), greedy(101))  # 25 of 40 blocks: alone, so it may
    assert bench.until(m.Admitted).upto == 25
    bench.admit("md", bench.rid(2), list(range(500, 505)), greedy(506))
    assert bench.until(m.Refused).reason is m.RefuseReason.NO_BLOCKS
    bench.admit("md", bench.rid(3), [7, 8], greedy(9))  # needs no transfer
    assert bench.until(m.Admitted, nth=2).ticket == b""
    bench.release(bench.rid(1), 2, "md")
    bench.admit("md", bench.rid(2), list(range(500, 505)), greedy(506))
    bench.until(m.Admitted, nth=3)


def test_refuses_more_requests_than_it_may_hold() -> None:
    bench = bench_of(max_running=1, max_queued=1)
    for counter in (1, 2, 3):
        bench.admit("md", bench.rid(counter), [counter], greedy(9))
    refused = bench.until(m.Refused)
    assert (refused.rid, refused.reason) == (bench.rid(3), m.RefuseReason.QUEUE_FULL)


def test_a_block_on_its_way_is_waited_for() -> None:
    """Eight equal prompts cross the line once."""
    bench = bench_of(blocks=128)
    ids = list(range(41))
    for counter in range(1, 9):
        bench.admit("md", bench.rid(counter), ids, greedy(44))
        bench.prefill("p", bench.rid(counter), ids, greedy(44))
    bench.until(m.Admitted, nth=8)
    for admitted in bench.router.of(m.Admitted):
        assert (admitted.have, admitted.expected) == (0, 0 if admitted.rid.counter == 1 else 10)
        bench.attach("p", "md", admitted)
    bench.run(2)
    assert sum(have.complete for have in bench.router.of(m.Have, "md")) == 8
    assert bench["p"].worker.counters["kv_bytes_out_total"] == 10 * bench["md"].worker.site.block_bytes
    bench.release(bench.rid(1), 2)
    for counter in range(2, 9):
        bench.release(bench.rid(counter), 2)
    bench.run(1)
    assert bench.idle()


@pytest.mark.parametrize("attach_late", [False, True])
def test_when_the_other_ticket_ends_the_rest_is_asked_for(attach_late: bool) -> None:
    bench = bench_of(blocks=128)
    ids = list(range(41))
    for counter in (1, 2):
        bench.admit("md", bench.rid(counter), ids, greedy(44))
        bench.prefill("p", bench.rid(counter), ids, greedy(44))
    second = bench.until(m.Admitted, nth=2)
    assert second.expected == 10
    if not attach_late:
        bench.attach("p", "md", second)
        bench.run(0.5)
    bench.release(bench.rid(1), 2)
    if attach_late:
        bench.run(0.5)
        assert not any(have.complete for have in bench.router.of(m.Have, "md"))
        bench.attach("p", "md", second)  # says that ten blocks come under another ticket: they do no more
    have = bench.until(m.Have, "md")
    assert (have.rid, have.complete, have.published) == (bench.rid(2), True, 10)


def test_admit_again_makes_a_new_ticket_and_keeps_what_is_here() -> None:
    bench = bench_of()
    rid, ids = bench.rid(), list(range(41))
    bench.sim.link("p", "md").line.rate = 3000.0  # type: ignore[union-attr]
    bench.admit("md", rid, ids, greedy(60))
    bench.prefill("p", rid, ids, greedy(60))
    first = bench.until(m.Admitted)
    bench.attach("p", "md", first)
    bench.sim.run(stop=lambda: bench["md"].worker.counters.get("kv_bytes_in_total", 0) > 1000)
    bench.feed("md", rid, 1, 41, [500, 501], m.Do.HOLD)
    bench.run(0.01)
    bench.admit("md", rid, ids, greedy(60), term=5)
    second = bench.until(m.Admitted, nth=2)
    assert second.ticket != first.ticket
    assert (second.term, second.upto) == (5, 10)
    assert second.have >= 3, "blocks that had landed stay"
    bench.run(0.5)
    assert bench["p"].worker.counts()["transfers"] == 0, "the old ticket is gone for its sender"
    assert bench["md"].worker.counters["chunks_gone_total"] >= 1
    bench.attach("p", "md", second)
    assert bench.until(m.Have, "md").complete
    part = bench["md"].worker.rooms.decoding.get(rid)
    assert part is not None
    assert part.known.ids == [*ids, 500, 501], "fed ids stay"


def test_an_owner_that_is_admitted_again_starts_from_the_log() -> None:
    bench = bench_of()
    rid, ids = bench.rid(), [1, 2, 3]
    bench.admit("md", rid, ids, greedy(200))
    bench.feed("md", rid, 3, 3, [], m.Do.OWN)
    bench.sim.run(stop=lambda: len(bench.rows(rid)) >= 9)
    log = bench.output(rid, 3)
    bench.admit("md", rid, [*ids, *log[:4]], greedy(200), term=7, prompt_len=3)
    admitted = bench.until(m.Admitted, nth=2)
    assert (admitted.term, admitted.have, admitted.ticket) == (7, 1, b"")
    bench.run(0.3)
    count = len(bench.rows(rid))
    bench.run(0.3)
    assert len(bench.rows(rid)) == count, "it does not own until it is told"
    bench.feed("md", rid, 8, 7, [], m.Do.OWN)
    bench.run(0.3)
    rows = bench.rows(rid, term=8)
    assert rows[0].start == 7
    assert [row.ids[0] for row in rows][:4] == log[4:8]


def test_rewarming_lives_as_an_alignment() -> None:
    bench = bench_of(align_fraction=0.5)
    ids = list(range(41))
    bench.prefill("p", bench.rid(1), ids, greedy(42))
    bench.until(m.TokensOut)
    bench.release(bench.rid(1), 1, "p")
    sampling = m.Sampling(max_pos=0, seed=0)
    bench.admit("md", bench.rid(2), ids, sampling, purpose=m.Purpose.WARM)
    admitted = bench.until(m.Admitted)
    assert bench["md"].worker.counts()["requests"] == 0
    assert bench["md"].pool.promised_total == 10, "no growth"
    bench.attach("p", "md", admitted, cls=m.TransferClass.ALIGNMENT, hashes=hashes_of(ids))
    assert bench.until(m.Have, "md").complete
    bench.run(0.1)
    assert bench.idle()
    assert bench["md"].pool.cached == 10
    assert bench["md"].worker.counters["alignments_done_total"] == 1
    bench.admit("md", bench.rid(3), ids, sampling, purpose=m.Purpose.WARM)
    assert bench.until(m.Admitted, nth=2).ticket == b"", "warm already"
    bench.run(0.1)
    assert bench.idle()
