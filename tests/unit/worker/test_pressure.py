"""When growth finds no block: who is given up, and that the oldest always ends."""

from __future__ import annotations

from shared.policy.config import WorkerPolicy
from shared.wire import messages as m
from tests.support.mesh import Bench, greedy, worker_node


def bench_of(role: m.Role, blocks: int) -> Bench:
    policy = WorkerPolicy(growth_tokens=4, unlanded_fraction=1.0, local_tokens=0)
    return Bench(worker_node("d", role, blocks=blocks, policy=policy))


def runs(bench: Bench, counter: int, length: int, tokens: int) -> m.Rid:
    """A request that owns and decodes."""
    rid = bench.rid(counter)
    before = len(bench.router.of(m.Admitted))
    bench.admit("d", rid, list(range(100 * counter, 100 * counter + length)), greedy(length + tokens))
    bench.until(m.Admitted, nth=before + 1)
    bench.feed("d", rid, 3, length, [], m.Do.OWN)
    bench.run(0.02)
    return rid


def test_the_unlanded_ticket_goes_before_any_sequence() -> None:
    bench = bench_of(m.Role.MAIN, 12)
    first = runs(bench, 1, 3, 40)
    bench.admit("d", bench.rid(2), list(range(500, 522)), greedy(24))
    bench.until(m.Admitted, nth=2)
    failed = bench.until(m.Failed)
    assert (failed.rid, failed.reason) == (bench.rid(2), m.FailReason.REVOKED)
    assert failed.ticket == bench.router.of(m.Admitted)[1].ticket
    assert bench.until(m.Finished).rid == first
    bench.release(first, 3)
    bench.run(0.1)
    assert bench.idle()


def test_then_the_youngest_is_parked_and_its_blocks_stay_cached() -> None:
    bench = bench_of(m.Role.MAIN, 16)
    oldest = runs(bench, 1, 3, 50)
    runs(bench, 2, 3, 50)
    failed = bench.until(m.Failed)
    assert (failed.rid, failed.reason, failed.term) == (bench.rid(2), m.FailReason.PARKED, 3)
    made = bench.output(bench.rid(2), 3)
    assert bench["d"].pool.cached > 0
    assert bench.until(m.Finished).rid == oldest
    bench.release(oldest, 3)
    bench.admit("d", bench.rid(2), [200, 201, 202, *made], greedy(53), term=8, prompt_len=3)
    bench.feed("d", bench.rid(2), 9, 3 + len(made), [], m.Do.OWN)
    assert bench.until(m.Finished, nth=2).at == 53, "it comes back by Admit and ends"
    bench.release(bench.rid(2), 9)
    bench.run(0.1)
    assert bench.idle()


def test_one_always_ends() -> None:
    """Many that cannot all fit: every round of pressure leaves the oldest alone."""
    bench = bench_of(m.Role.MAIN, 20)
    for counter in range(1, 5):
        runs(bench, counter, 3, 60)
    finished = bench.until(m.Finished)
    assert finished.rid == bench.rid(1)
    assert bench.rid(1) not in {failed.rid for failed in bench.router.of(m.Failed)}


def test_one_that_fills_the_pool_alone_fails() -> None:
    bench = bench_of(m.Role.MAIN, 8)
    runs(bench, 1, 3, 100)
    failed = bench.until(m.Failed)
    assert "8 blocks are too few" in failed.detail
    bench.run(0.1)
    assert bench.idle()


def test_a_relay_releases_the_one_whose_transfer_has_the_longest_to_go() -> None:
    bench = bench_of(m.Role.RELAY, 24)
    runs(bench, 1, 3, 60)
    runs(bench, 2, 23, 60)
    runs(bench, 3, 3, 60)
    failed = bench.until(m.Failed)
    assert (failed.rid, failed.reason) == (bench.rid(2), m.FailReason.PRESSURE)
