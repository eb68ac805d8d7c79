"""The three pipelines and their ends, driven message by message over the simulator."""

from __future__ import annotations

from shared.engine.synthetic import synthetic_run
from shared.wire import messages as m
from shared.worker.asked import params_of
from tests.support.mesh import LAYOUT, VOCAB, Bench, greedy, worker_node


def expected(ids: list[int], sampling: m.Sampling, n: int | None = None) -> list[int]:
    return synthetic_run(ids, params_of(sampling), VOCAB, len(ids), n)


def test_main_decode_alone() -> None:
    bench = Bench(worker_node("md", m.Role.MAIN))
    rid, ids, sampling = bench.rid(), list(range(10, 40)), greedy(40)
    bench.admit("md", rid, ids, sampling)
    admitted = bench.until(m.Admitted)
    assert (admitted.have, admitted.expected, admitted.upto) == (0, 0, 7)
    assert admitted.ticket
    bench.feed("md", rid, 3, 30, [], m.Do.OWN)
    finished = bench.until(m.Finished)
    assert (finished.term, finished.at, finished.reason) == (3, 40, m.FinishReason.LENGTH)
    assert bench.output(rid, 30) == expected(ids, sampling)
    assert {row.term for row in bench.rows(rid)} == {3}
    bench.release(rid, 3)
    bench.run(1)
    assert bench.idle()


def test_prefill_then_main() -> None:
    bench = Bench(worker_node("p", m.Role.PREFILL), worker_node("md", m.Role.MAIN))
    rid, ids, sampling = bench.rid(), list(range(100, 143)), greedy(60)
    bench.admit("md", rid, ids, sampling)
    bench.prefill("p", rid, ids, sampling)
    admitted = bench.until(m.Admitted)
    bench.attach("p", "md", admitted)
    have = bench.until(m.Have, "md")
    assert have.complete
    first = bench.output(rid, 43, "p")
    assert first == expected(ids, sampling, 1)
    bench.feed("md", rid, 3, 43, first, m.Do.OWN)
    bench.until(m.Finished, "md")
    assert bench.output(rid, 43) == expected(ids, sampling)
    assert bench["p"].worker.counters["kv_bytes_out_total"] == 10 * LAYOUT.block_bytes
    bench.release(rid, 3)
    bench.run(1)
    assert bench.idle()


def test_relay_then_cut() -> None:
    bench = Bench(
        worker_node("p", m.Role.PREFILL), worker_node("rld", m.Role.RELAY), worker_node("md", m.Role.MAIN)
    )
    rid, ids, sampling = bench.rid(), list(range(200, 240)), greedy(90)
    bench.admit("md", rid, ids, sampling, term=3)
    bench.admit("rld", rid, ids, sampling, term=2)
    bench.prefill("p", rid, ids, sampling)
    relay = bench.until(m.Admitted, "rld")
    bench.attach("p", "rld", relay, cls=m.TransferClass.COVERED)
    main = bench.until(m.Admitted, "md")
    bench.sim.run(stop=lambda: len(bench.output(rid, 40, "rld")) >= 12)
    assert bench.rows(rid, "rld")[0].start == 40, "the relay repeats P's id"
    assert {row.term for row in bench.rows(rid, "rld")} == {2}
    bench.attach("p", "md", main, cls=m.TransferClass.COVERED)
    bench.sim.run(stop=lambda: any(h.complete for h in bench.router.of(m.Have, "md")))
    log = bench.output(rid, 40, "rld")
    bench.feed("md", rid, 4, 40, log, m.Do.OWN)
    bench.release(rid, 4, "rld")
    bench.until(m.Finished, "md")
    assert bench.output(rid, 40) == expected(ids, sampling)
    bench.release(rid, 4, "p", "md")
    bench.run(1)
    assert bench.idle()


def test_catch_up() -> None:
    bench = Bench(
        worker_node("p", m.Role.PREFILL), worker_node("rld", m.Role.RELAY), worker_node("md", m.Role.MAIN)
    )
    rid, ids, sampling = bench.rid(), list(range(300, 333)), greedy(120)
    bench.admit("md", rid, ids, sampling, term=3)
    bench.admit("rld", rid, ids, sampling, term=2)
    bench.prefill("p", rid, ids, sampling)
    bench.attach("p", "rld", bench.until(m.Admitted, "rld"))
    bench.attach("p", "md", bench.until(m.Admitted, "md"))
    bench.sim.run(stop=lambda: len(bench.output(rid, 33, "rld")) >= 20)
    log = bench.output(rid, 33)
    bench.feed("md", rid, 2, 33, log, m.Do.EXTEND)
    caught = bench.until(m.CaughtUp)
    assert (caught.term, caught.upto) == (2, 33 + len(log))
    rest = bench.output(rid, 33)[len(log) :]
    assert rest, "the relay went on meanwhile"
    bench.feed("md", rid, 4, caught.upto, rest, m.Do.OWN)
    bench.release(rid, 4, "rld")
    bench.until(m.Finished, "md")
    assert bench.output(rid, 33) == expected(ids, sampling)
    bench.release(rid, 4, "p", "md")
    bench.run(1)
    assert bench.idle()
