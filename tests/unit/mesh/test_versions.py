"""A mesh in which some nodes speak the version before: a rolling upgrade, at each of its moments."""

from __future__ import annotations

import pytest

from shared.wire import messages as m
from tests.support.whole_mesh import WholeMesh, prompt
from tests.unit.mesh.test_roads import ROADS, road

NODES = ("p1", "rld1", "md1")
MOMENTS = {
    "routers first": NODES,
    "main decode last": ("md1",),
    "routers last": ("r",),
    "only main decode is new": ("r", "p1", "rld1"),
}


@pytest.mark.parametrize("old", MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize("pipeline", ROADS)
def test_each_road_is_taken_with_nodes_of_the_version_before(pipeline: str, old: tuple[str, ...]) -> None:
    mesh = road(pipeline, old=old)
    tokens = 4 if pipeline == "P-RLD" else 120
    first = mesh.submit(prompt(82), tokens)
    mesh.finish()
    assert first.pipeline == pipeline
    again = mesh.submit([*prompt(82), *first.got, 3], 20)
    mesh.finish()
    assert [first.outcome, again.outcome] == ["done", "done"]
    assert (len(first.got), len(again.got)) == (tokens, 20)
    mesh.settle()


@pytest.mark.parametrize("old", [NODES, ("r",)], ids=["old workers", "old router"])
def test_the_index_is_whole_where_the_other_side_is_of_the_version_before(old: tuple[str, ...]) -> None:
    mesh = road("P-MD", old=old)
    mesh.submit(prompt(82), 40)
    mesh.finish()
    mesh.settle()
    core = mesh.routers["r"]
    for name, node in mesh.workers.items():
        assert core.mesh.index.hashes(name) == frozenset(node.pool.hashes())


def test_a_node_that_is_upgraded_in_the_middle_of_a_request_is_one_that_restarts() -> None:
    mesh = WholeMesh(old=("md1", "p1"), **ROADS["P-RLD-MD"])
    client = mesh.submit(prompt(82), 300)
    mesh.until(lambda: m.Role.RELAY in client.owners)
    mesh._old = frozenset({"p1"})
    mesh.restart("md1")
    mesh.finish()
    assert client.outcome == "done", client.error
    mesh.settle()
