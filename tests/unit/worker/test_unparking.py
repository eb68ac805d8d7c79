"""A parked ticket gives way to others that want its blocks; one that is parked no more does not."""

from __future__ import annotations

from shared.wire import messages as m
from tests.support.mesh import Bench, greedy, worker_node

IDS = list(range(50, 93))  # ten full blocks


def bench_of() -> tuple[Bench, m.Admitted]:
    """A parked transfer under way, on a line that takes its time."""
    bench = Bench(
        worker_node("p", m.Role.PREFILL, blocks=128), worker_node("md", m.Role.MAIN, blocks=128), chunk=256
    )
    live = bench.sim.link("p", "md")
    assert live is not None
    live.line.rate = 100.0
    bench.prefill("p", bench.rid(1), IDS, greedy(63))
    bench.until(m.TokensOut, "p")
    bench.admit("md", bench.rid(1), IDS, greedy(63), parked=True)
    parked = bench.until(m.Admitted, "md")
    bench.attach("p", "md", parked, cls=m.TransferClass.PARKED)
    return bench, parked


def second(bench: Bench) -> m.Admitted:
    bench.admit("md", bench.rid(2), IDS, greedy(63))
    return bench.until(m.Admitted, "md", nth=2)


def test_others_do_not_wait_for_a_parked_ticket() -> None:
    bench, _ = bench_of()
    assert second(bench).expected == 0


def test_they_wait_for_one_that_was_un_parked() -> None:
    bench, parked = bench_of()
    bench.attach("md", "md", parked, cls=m.TransferClass.COVERED)
    assert second(bench).expected == 10
    bench.attach("p", "md", parked, cls=m.TransferClass.COVERED)
    live = bench.sim.link("p", "md")
    assert live is not None
    live.line.rate = 0.0
    bench.until(m.Have, "md", nth=2, within=60.0)
    assert all(have.complete for have in bench.router.of(m.Have, "md"))


def test_one_that_is_parked_again_gives_way_again() -> None:
    bench, parked = bench_of()
    for cls in (m.TransferClass.UNCOVERED, m.TransferClass.PARKED):
        bench.attach("md", "md", parked, cls=cls)
    assert second(bench).expected == 0


def test_a_class_for_a_ticket_that_is_over_changes_nothing() -> None:
    bench, parked = bench_of()
    bench.release(bench.rid(1), 9, "md")
    bench.attach("md", "md", parked, cls=m.TransferClass.COVERED)
    bench.run(0.1)
    assert not bench["md"].worker.counts()["tickets"]
    assert not bench.router.of(m.Missing, "md")
