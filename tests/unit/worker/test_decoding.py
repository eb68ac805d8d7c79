"""A request at a decoder: feeds, gaps, terms, ownership, First, CaughtUp, ends."""

from __future__ import annotations

import pytest

from shared.engine.synthetic import synthetic_run
from shared.kv.hashing import pack_ids
from shared.policy.config import WorkerPolicy
from shared.wire import messages as m
from shared.worker.asked import params_of
from tests.support.mesh import BLOCK_TOKENS, VOCAB, Bench, greedy, hashes_of, worker_node

IDS = list(range(50, 73))


def expected(sampling: m.Sampling, ids: list[int] = IDS) -> list[int]:
    return synthetic_run(ids, params_of(sampling), VOCAB, len(ids))


def decoder(role: m.Role = m.Role.MAIN, **policy: float) -> Bench:
    settings = {"max_running": 8, "max_queued": 8, "token_budget": 16, "max_chunk_tokens": 32, **policy}
    return Bench(worker_node("d", role, policy=WorkerPolicy(**settings)), worker_node("p", m.Role.PREFILL))  # type: ignore[arg-type]


def ready(bench: Bench, sampling: m.Sampling, ids: list[int] = IDS) -> m.Rid:
    """A request with every block at decoder d, of which nothing was asked yet."""
    rid = bench.rid()
    bench.admit("d", rid, ids, sampling)
    bench.prefill("p", rid, ids, sampling)
    bench.attach("p", "d", bench.until(m.Admitted))
    bench.until(m.Have)
    return rid


def known(bench: Bench, rid: m.Rid) -> list[int]:
    part = bench["d"].worker.rooms.decoding.get(rid)
    assert part is not None
    return part.known.ids


def test_feeds_are_appended_and_overlaps_compared() -> None:
    bench = decoder()
    sampling = greedy(60)
    rid = ready(bench, sampling)
    log = expected(sampling)
    bench.feed("d", rid, 1, 23, log[:4], m.Do.HOLD)
    bench.feed("d", rid, 1, 24, log[1:7], m.Do.HOLD)
    bench.feed("d", rid, 1, 23, log[:2], m.Do.HOLD)
    bench.run(0.1)
    assert known(bench, rid) == [*IDS, *log[:7]]
    assert bench["d"].worker.site.engine.stats.computed_tokens == 0, "held ids are not computed"


def test_a_feed_past_the_end_is_held_until_the_gap_closes() -> None:
    bench = decoder()
    sampling = greedy(40)
    rid = ready(bench, sampling)
    log = expected(sampling)
    bench.feed("d", rid, 3, 29, log[6:9], m.Do.OWN)
    bench.feed("d", rid, 3, 26, log[3:6], m.Do.HOLD)
    bench.run(0.2)
    assert known(bench, rid) == IDS
    assert not bench.rows(rid, "d")
    bench.feed("d", rid, 3, 23, log[:3], m.Do.HOLD)
    bench.until(m.Finished, "d")
    assert bench.rows(rid, "d")[0].start == 32, "own came with the run whose gap has closed"
    assert bench.output(rid, 23, "d") == log[9:]


def test_a_feed_that_differs_fails_the_request_alone() -> None:
    bench = decoder()
    rid = ready(bench, greedy(60))
    bench.feed("d", rid, 1, 23, [1, 2, 3], m.Do.HOLD)
    bench.feed("d", rid, 1, 24, [9], m.Do.HOLD)
    failed = bench.until(m.Failed, "d")
    assert (failed.reason, failed.rid) == (m.FailReason.INTERNAL, rid)
    assert "divergence" in failed.detail
    assert bench["d"].worker.counters["divergence_total"] == 1
    bench.release(rid, 9)
    bench.run(0.1)
    assert bench.idle()


def test_too_much_behind_a_gap_fails() -> None:
    bench = decoder()
    rid = ready(bench, greedy(60))
    bench.feed("d", rid, 1, 30, [1] * 40_000, m.Do.HOLD)
    bench.feed("d", rid, 1, 30, [1] * 40_000, m.Do.HOLD)
    assert "wait for a gap" in bench.until(m.Failed, "d").detail


def test_older_terms_and_strangers_are_ignored() -> None:
    bench = decoder()
    sampling = greedy(60)
    rid = ready(bench, sampling)
    log = expected(sampling)
    bench.feed("d", rid, 5, 23, log[:2], m.Do.HOLD)
    bench.feed("d", rid, 4, 25, log[2:4], m.Do.OWN)
    bench.feed("d", bench.rid(9), 4, 25, [1], m.Do.OWN)
    bench.run(0.2)
    assert known(bench, rid) == [*IDS, *log[:2]]
    assert not bench.rows(rid, "d")
    assert bench["d"].worker.counters["old_term_total"] == 1
    assert bench["d"].worker.counters["feeds_stray_total"] == 1


def test_caught_up_answers_the_newest_extend_once_all_is_computed() -> None:
    bench = decoder()
    sampling = greedy(200)
    rid = ready(bench, sampling)
    log = expected(sampling)
    bench.feed("d", rid, 1, 23, log[:40], m.Do.EXTEND)
    bench.sim.run(bench.sim.now + 0.003)
    bench.feed("d", rid, 2, 63, log[40:90], m.Do.EXTEND)
    caught = bench.until(m.CaughtUp)
    assert (caught.term, caught.upto) == (2, 113)
    part = bench["d"].worker.rooms.decoding.get(rid)
    assert part is not None
    assert part.seq is not None
    assert bench["d"].worker.site.engine.computed(part.seq) == 112
    bench.run(0.2)
    assert len(bench.router.of(m.CaughtUp)) == 1
    bench.feed("d", rid, 3, 113, [], m.Do.EXTEND)
    assert bench.until(m.CaughtUp, nth=2).term == 3, "nothing new: answered at once"
    bench.feed("d", rid, 4, 113, log[90:95], m.Do.HOLD)
    bench.run(0.1)
    assert bench["d"].worker.site.engine.computed(part.seq) == 112
    bench.feed("d", rid, 5, 118, [], m.Do.OWN)
    bench.until(m.Finished, "d")
    assert bench.output(rid, 23, "d") == log[95:]


def test_an_older_extend_does_not_answer_a_newer_one() -> None:
    bench = decoder()
    ids, sampling = IDS[:21], greedy(100)  # nothing is left to compute but the last id
    rid = ready(bench, sampling, ids)
    log = expected(sampling, ids)
    d = bench["d"]
    for term, start, run in ((2, 21, []), (3, 21, log[:40])):
        message = m.Feed(rid, term, start, m.Do.EXTEND)
        d.worker.on_message(bench.sim.now, "r", message, pack_ids(run))
    bench.sim.perform(d)
    bench.until(m.CaughtUp, nth=2)
    assert [(caught.term, caught.upto) for caught in bench.router.of(m.CaughtUp)] == [(2, 21), (3, 61)]


def test_extend_before_the_blocks_are_here_is_done_once_they_are() -> None:
    bench = decoder()
    sampling = greedy(60)
    rid, log = bench.rid(), expected(sampling)
    bench.admit("d", rid, IDS, sampling)
    admitted = bench.until(m.Admitted)
    bench.feed("d", rid, 1, 23, log[:3], m.Do.EXTEND)
    bench.prefill("p", rid, IDS, sampling)
    bench.attach("p", "d", admitted)
    assert bench.until(m.CaughtUp).upto == 26


def test_named_owner_while_bytes_come_it_waits_for_them() -> None:
    bench = decoder(local_tokens=0)
    sampling = greedy(40)
    rid, log = bench.rid(), expected(sampling)
    bench.sim.link("d", "p").line.rate = 2000.0  # type: ignore[union-attr]
    bench.admit("d", rid, IDS, sampling)
    bench.prefill("p", rid, IDS, sampling)
    bench.attach("p", "d", bench.until(m.Admitted))
    bench.sim.run(stop=lambda: bench["d"].worker.counters.get("kv_bytes_in_total", 0) > 0)
    bench.feed("d", rid, 3, 23, log[:1], m.Do.OWN)
    bench.until(m.Finished, "d")
    assert bench.output(rid, 23, "d") == log[1:]
    assert "local_extends_total" not in bench["d"].worker.counters


def test_named_owner_of_a_transfer_that_stands_still_it_computes_the_rest() -> None:
    bench = decoder(local_tokens=0)
    sampling = greedy(40)
    rid, log = bench.rid(), expected(sampling)
    bench.sim.link("d", "p").line.rate = 2000.0  # type: ignore[union-attr]
    bench.admit("d", rid, IDS, sampling)
    bench.prefill("p", rid, IDS, sampling)
    bench.attach("p", "d", bench.until(m.Admitted))
    bench.sim.run(stop=lambda: bench["d"].worker.counters.get("kv_bytes_in_total", 0) > 300)
    bench.sim.cut("d", "p")
    bench.feed("d", rid, 3, 23, log[:1], m.Do.OWN)
    bench.until(m.Finished, "d")
    assert bench.output(rid, 23, "d") == log[1:]
    assert bench["d"].worker.counters["local_extends_total"] == 1


@pytest.mark.parametrize(("more", "begins"), [(0, True), (1, False)])
def test_who_lacks_no_more_than_it_was_told_begins_with_its_admission(more: int, begins: bool) -> None:
    bench = decoder()
    sampling = greedy(60)
    first = ready(bench, sampling)
    bench.send("d", m.Release(first, 9))
    have = len(IDS) // BLOCK_TOKENS * BLOCK_TOKENS
    ids = [*IDS[:have], *range(10, 20 + more)]
    rid = bench.rid(2)
    bench.admit("d", rid, ids, sampling, alone=10)
    admitted = bench.until(m.Admitted, nth=2)
    assert (admitted.alone, bool(admitted.ticket)) == (begins, not begins)
    if begins:
        done = bench.until(m.Finished, "d")
        assert done.term == 2, "its Admit's"
        assert bench.output(rid, len(ids), "d") == expected(sampling, ids)
        bench.send("d", m.Release(rid, 9))
    else:
        bench.run(1.0)
        assert bench.rows(rid, "d") == []


@pytest.mark.parametrize("role", [m.Role.MAIN, m.Role.RELAY])
def test_nobody_begins_who_was_not_told_to(role: m.Role) -> None:
    bench = decoder(role)
    ids = IDS[: len(IDS) // BLOCK_TOKENS * BLOCK_TOKENS]
    sampling = greedy(60)
    bench.send("d", m.Release(ready(bench, sampling, ids), 9))
    bench.admit("d", bench.rid(2), ids, sampling, alone=100 if role is m.Role.RELAY else 0)
    assert not bench.until(m.Admitted, nth=2).alone
    bench.run(1.0)
    assert bench.rows(bench.rid(2), "d") == []


def test_resume_repeats_own_ids_and_the_end() -> None:
    bench = decoder()
    sampling = greedy(33, logprobs=1)
    rid = ready(bench, sampling)
    log = expected(sampling)
    bench.feed("d", rid, 3, 23, log[:2], m.Do.OWN)
    bench.until(m.Finished, "d")
    before = len(bench.rows(rid, "d"))
    bench.send("d", m.Resume(rid, 27))
    bench.until(m.Finished, "d", nth=2)
    (row,) = bench.rows(rid, "d")[before:]
    assert (row.term, row.start, list(row.ids)) == (3, 27, log[4:])
    assert row.logprobs is not None
    assert len(row.logprobs) == len(row.ids)


def test_owner_again_under_a_new_term_sends_the_log_s_rest_again() -> None:
    bench = decoder()
    sampling = greedy(33)
    rid = ready(bench, sampling)
    log = expected(sampling)
    bench.feed("d", rid, 3, 23, log[:1], m.Do.OWN)
    bench.until(m.Finished, "d")
    bench.feed("d", rid, 6, 23, log[:5], m.Do.OWN)
    finished = bench.until(m.Finished, "d", nth=2)
    assert finished.term == 6
    (row,) = bench.rows(rid, term=6)
    assert (row.start, list(row.ids)) == (28, log[5:])


def test_a_log_that_its_owner_did_not_send_fails() -> None:
    bench = decoder()
    sampling = greedy(30)
    rid = ready(bench, sampling)
    bench.feed("d", rid, 3, 23, expected(sampling)[:1], m.Do.OWN)
    bench.until(m.Finished, "d")
    bench.feed("d", rid, 3, 30, [1], m.Do.HOLD)
    assert "divergence" in bench.until(m.Failed, "d").detail


def test_release_of_an_older_term_is_ignored() -> None:
    bench = decoder()
    sampling = greedy(150)
    rid = ready(bench, sampling)
    bench.feed("d", rid, 6, 23, expected(sampling)[:1], m.Do.OWN)
    bench.run(0.05)
    bench.release(rid, 5, "d")
    bench.run(0.05)
    assert bench["d"].worker.counts()["requests"] == 1
    bench.release(rid, 6, "d")
    bench.run(0.05)
    sent = len(bench.rows(rid, "d"))
    assert bench["d"].worker.counts()["requests"] == 0
    bench.run(0.2)
    assert len(bench.rows(rid, "d")) == sent, "nothing is sent after Release"


def relay_with_first(sampling: m.Sampling, **policy: float) -> tuple[Bench, m.Rid]:
    bench = decoder(m.Role.RELAY, **policy)
    return bench, ready(bench, sampling)


@pytest.mark.parametrize(("max_tokens", "stop"), [(1, False), (5, True)])
def test_a_first_id_that_ends_the_request_is_not_decoded_further(max_tokens: int, stop: bool) -> None:
    first = expected(greedy(24))[0]
    sampling = greedy(23 + max_tokens, stop_ids=(first,) if stop else ())
    bench, rid = relay_with_first(sampling)
    finished = bench.until(m.Finished, "d")
    assert (finished.term, finished.at) == (2, 24)
    assert finished.reason is (m.FinishReason.STOP if stop else m.FinishReason.LENGTH)
    assert [(row.start, row.ids) for row in bench.rows(rid, "d")] == [(23, (first,))]
    by_prefill = bench.until(m.Finished, "p")
    assert (by_prefill.term, by_prefill.at) == (1, 24)


def test_a_relay_whose_blocks_were_here_starts_by_first() -> None:
    """Ticket b"": nothing to send, but the first id has to come."""
    bench, rid = relay_with_first(greedy(26))
    bench.until(m.Finished, "d")
    bench.release(rid, 2)
    bench.run(0.1)
    bench.admit("d", bench.rid(2), IDS, greedy(26))
    bench.prefill("p", bench.rid(2), IDS, greedy(26))
    admitted = bench.until(m.Admitted, nth=2)
    assert admitted.ticket == b""
    bench.attach("p", "d", admitted, hashes=hashes_of(IDS))
    bench.until(m.Finished, "d", nth=2)
    assert bench.output(bench.rid(2), 23, "d") == expected(greedy(26))


def test_a_relay_attached_late_starts_by_feed() -> None:
    bench = decoder(m.Role.RELAY)
    sampling = greedy(40)
    rid, log = bench.rid(), expected(sampling)
    bench.prefill("p", rid, IDS, sampling)
    bench.until(m.TokensOut, "p")
    bench.admit("d", rid, IDS, sampling, term=4)
    bench.feed("d", rid, 5, 23, log[:1], m.Do.OWN)
    bench.until(m.Finished, "d")
    assert {row.term for row in bench.rows(rid, "d")} == {5}
    assert bench.rows(rid, "d")[0].start == 24


def test_a_first_that_the_log_has_passed_starts_nothing() -> None:
    """Somebody else draws already: this relay waits for what the router says."""
    bench = decoder(m.Role.RELAY)
    sampling = greedy(40)
    rid, log = bench.rid(), expected(sampling)
    bench.admit("d", rid, IDS, sampling)
    admitted = bench.until(m.Admitted)
    bench.feed("d", rid, 5, 23, log[:3], m.Do.HOLD)
    bench.run(0.05)
    bench.prefill("p", rid, IDS, sampling)
    bench.attach("p", "d", admitted)
    bench.until(m.Have, "d")
    bench.run(0.2)
    assert not bench.rows(rid, "d")
    bench.feed("d", rid, 6, 26, [], m.Do.OWN)
    bench.until(m.Finished, "d")
    assert bench.output(rid, 23, "d") == log[3:]


def test_a_first_for_an_old_ticket_is_ignored() -> None:
    bench = decoder(m.Role.RELAY)
    bench.admit("d", bench.rid(), IDS, greedy(40))
    bench.until(m.Admitted)
    worker = bench["d"].worker
    bench.sim.call(
        bench["d"], lambda: worker.on_message(1.0, "p", m.First(b"x" * 16, bench.rid(), 23, (5,)), b"")
    )
    assert worker.counters["firsts_stray_total"] == 1


def test_a_relay_gives_up_at_its_limit() -> None:
    bench, rid = relay_with_first(greedy(200), relay_max_tokens=10)
    failed = bench.until(m.Failed, "d")
    assert (failed.reason, failed.term) == (m.FailReason.LIMIT, 2)
    assert len(bench.output(rid, 23, "d")) == 10
    bench.release(rid, 3)
    bench.run(0.1)
    assert bench.idle()


def test_a_request_that_nobody_releases_ends_by_itself() -> None:
    bench = decoder()
    bench.admit("d", bench.rid(), IDS, greedy(40), remaining=1.0)
    bench.run(5.5)
    assert not bench.router.of(m.Failed)
    failed = bench.until(m.Failed, "d", within=1.0)
    assert failed.reason is m.FailReason.TIMEOUT
    assert bench.idle()


def test_ids_of_one_step_leave_in_one_message() -> None:
    bench = decoder()
    for counter in (1, 2, 3):
        bench.admit("d", bench.rid(counter), [counter], greedy(30))
        bench.feed("d", bench.rid(counter), 3, 1, [], m.Do.OWN)
    bench.until(m.Finished, nth=3)
    assert max(len(message.rows) for message in bench.router.of(m.TokensOut)) == 3
