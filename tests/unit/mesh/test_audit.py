"""The index compared with the workers' truth: what is wrong in it is counted by worker, and put right."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.audit import Finding
from services.router.mirror import Mirror
from shared.wire import messages as m
from tests.support.whole_mesh import WholeMesh, prompt
from tests.unit.mesh.test_roads import road

NODES = ("md1", "p1", "rld1")


@pytest.fixture
def mesh() -> WholeMesh:
    """One that has served, and is at rest."""
    return served()


def served(**more: Any) -> WholeMesh:
    mesh = road("P-RLD-MD", **more)
    mesh.submit(prompt(82), 60)
    mesh.finish()
    mesh.settle()
    return mesh


def compare(mesh: WholeMesh, within: float = 5.0) -> dict[str, Finding]:
    """What the operator is told."""
    mesh.sim.call(mesh.sim.nodes["r"], mesh.core.compare)
    mesh.sim.run(mesh.sim.now + within, stop=lambda: not mesh.core.comparing)
    return {found.node: found for found in mesh.core.compared()}


def mirror(mesh: WholeMesh, node: str) -> Mirror:
    return mesh.core.mesh.index._mirrors[node]


def requests(mesh: WholeMesh) -> list[m.SnapshotRequest]:
    """What workers are asked for from now on."""
    heard: list[m.SnapshotRequest] = []

    def spy(_source: str, _target: str, message: m.Message, _payload: bytes) -> None:
        if isinstance(message, m.SnapshotRequest):
            heard.append(message)

    mesh.sim.spy = spy
    return heard


def is_true(mesh: WholeMesh) -> bool:
    index = mesh.core.mesh.index
    return all(index.hashes(name) == frozenset(node.pool.hashes()) for name, node in mesh.workers.items())


def test_an_index_that_is_right_costs_one_digest_a_worker(mesh: WholeMesh) -> None:
    asked = requests(mesh)
    found = compare(mesh)
    assert set(found) == set(NODES)
    assert all(one.equal and one.answered for one in found.values())
    held = {name: len(mesh[name].pool.hashes()) for name in NODES}
    assert held["md1"]
    assert {name: (one.held, one.known) for name, one in found.items()} == {
        name: (count, count) for name, count in held.items()
    }
    assert asked == 3 * [m.SnapshotRequest(digest=True)]


def test_what_is_wrong_is_counted_by_worker_and_put_right(mesh: WholeMesh) -> None:
    wrong = mirror(mesh, "md1")
    held = sorted(wrong.stored)
    wrong.remove(held[:5])
    wrong.store([bytes([at]) * 16 for at in range(3)])
    found = compare(mesh)
    assert found["md1"] == Finding("md1", True, len(held), len(held) - 2, missing=5, extra=3)
    assert not found["md1"].equal
    assert found["p1"].equal
    assert found["rld1"].equal
    assert is_true(mesh)
    assert all(one.equal for one in compare(mesh).values())
    counters = mesh.core.snapshot()
    assert (counters["index_compared_total"], counters["index_wrong_blocks_total"]) == (6, 8)


def test_one_hash_for_another_is_seen_though_the_count_is_right(mesh: WholeMesh) -> None:
    wrong = mirror(mesh, "md1")
    wrong.remove([min(wrong.stored)])
    wrong.store([b"x" * 16])
    found = compare(mesh)["md1"]
    assert (found.missing, found.extra) == (1, 1)
    assert is_true(mesh)


def test_an_event_that_was_lost_without_a_gap_is_seen(mesh: WholeMesh) -> None:
    """The number went on and the content did not: what no gap shows."""
    wrong = mirror(mesh, "p1")
    assert wrong.seq is not None
    wrong.seq -= 1
    found = compare(mesh)["p1"]
    assert found.answered
    assert (found.missing, found.extra) == (0, 0)  # only its number was wrong
    assert mirror(mesh, "p1").seq == wrong.seq
    assert is_true(mesh)


def test_a_comparison_while_requests_change_the_caches_finds_nothing_wrong(mesh: WholeMesh) -> None:
    clients = [mesh.submit([at, *prompt(90)], 150) for at in range(4)]
    for _ in range(8):
        mesh.run(0.1)
        found = compare(mesh)
        assert all(one.equal for one in found.values()), found
    mesh.finish(*clients)
    mesh.settle()


def test_a_worker_of_the_version_before_answers_with_all_it_has() -> None:
    mesh = served(old=("md1",))
    wrong = mirror(mesh, "md1")
    wrong.remove(sorted(wrong.stored)[:2])
    found = compare(mesh)
    assert (found["md1"].missing, found["md1"].extra) == (2, 0)
    assert found["p1"].equal
    assert is_true(mesh)
    assert compare(mesh)["md1"].equal


def test_who_does_not_answer_is_not_waited_for(mesh: WholeMesh) -> None:
    link = mesh.sim.link("md1", "r")
    assert link is not None
    mesh.sim.cut("md1", "r")
    found = compare(mesh, within=0.5)
    assert found["md1"] == Finding("md1", answered=False)
    assert not found["md1"].equal
    assert found["p1"].equal
    assert not mesh.core.comparing


def test_a_worker_that_leaves_meanwhile_has_not_answered(mesh: WholeMesh) -> None:
    mesh.sim.call(mesh.sim.nodes["r"], mesh.core.compare)
    mesh.sim.kill("rld1")
    mesh.run(60.0)
    assert not mesh.core.comparing
    found = {one.node: one for one in mesh.core.compared()}
    assert not found["rld1"].answered
    assert found["md1"].equal


def test_two_who_ask_at_once_have_part_in_one_comparison(mesh: WholeMesh) -> None:
    asked = requests(mesh)
    mesh.sim.call(mesh.sim.nodes["r"], mesh.core.compare)
    assert len(compare(mesh)) == 3
    assert len(asked) == 3
    assert len(mesh.core.compared()) == 3
