"""Two routers over the same workers: each sees the whole index, and a request has one router that decides."""

from __future__ import annotations

import pytest

from shared.wire import messages as m
from tests.support.mesh import BLOCK_TOKENS
from tests.support.mesh_client import Client
from tests.support.whole_mesh import BLOCK_BYTES, WholeMesh, policy, prompt

RELAYED = policy(md_local_tokens=0, singular=False, relay_margin=-10.0)
PROMPT = prompt(80)
BLOCKS = len(PROMPT) // BLOCK_TOKENS


def two(**changes: object) -> WholeMesh:
    return WholeMesh("p1", "p2", "rld1", "md1", "md2", routers=("r", "s"), **changes)  # type: ignore[arg-type]


def known(mesh: WholeMesh, router: str, name: str) -> frozenset[bytes]:
    return mesh.routers[router].mesh.index.hashes(name)


def test_each_sees_the_index_that_the_workers_are() -> None:
    mesh = two(wan=0.0)
    for seed in range(4):
        mesh.submit(prompt(60, seed), 8, router="rs"[seed % 2])
    mesh.finish()
    mesh.settle()
    for name, node in mesh.workers.items():
        held = set(node.pool.hashes())
        assert known(mesh, "r", name) == held == known(mesh, "s", name)
    assert any(known(mesh, "r", name) for name in mesh.workers)


def test_the_next_turn_may_go_through_the_other_router() -> None:
    mesh = two(wan=20e3)
    first = mesh.submit(PROMPT, 250, router="r")
    mesh.finish()
    mesh.settle()
    sent = mesh.wan_bytes
    second = mesh.submit(first.log + prompt(2, 9), 8, router="s")
    mesh.finish()
    assert second.pipeline == "MD"
    assert second.trace["nodes"]["main_decode"] == first.trace["nodes"]["main_decode"]
    assert second.trace["md_hit_tokens"] >= len(first.log) - BLOCK_TOKENS, (
        "prompt and answer of the first turn"
    )
    assert mesh.wan_bytes == sent
    mesh.settle()


def both(mesh: WholeMesh, tokens: int = 250) -> tuple[Client, Client]:
    """The same prompt through each; the second one's blocks are on their way for the first."""
    one = mesh.submit(PROMPT, tokens, router="r")
    mesh.until(lambda: mesh.wan_bytes > 2 * BLOCK_BYTES)
    return one, mesh.submit(PROMPT, tokens, seed=1, temperature=1.0, router="s")


@pytest.mark.parametrize("gone", ["r", "s"])
def test_what_one_cancels_the_other_still_gets(gone: str) -> None:
    """Blocks that two requests of two routers wait for cross once, and stay on their way for the other."""
    mesh = WholeMesh("p1", "rld1", "md1", routers=("r", "s"), router=RELAYED, wan=6e3)
    one, other = both(mesh)
    mesh.run(0.1)
    left, stays = (one, other) if gone == "r" else (other, one)
    mesh.cancel(left)
    mesh.finish(stays)
    assert m.Role.MAIN in stays.owners
    mesh.settle()
    assert mesh.wan_bytes <= (BLOCKS + 3) * BLOCK_BYTES
    assert mesh.check_prompts(stays) == 0


def test_one_dies_and_the_other_s_streams_go_on() -> None:
    mesh = WholeMesh("p1", "rld1", "md1", routers=("r", "s"), router=RELAYED, wan=6e3)
    _, other = both(mesh)
    mesh.run(0.1)
    mesh.kill_router("r")
    mesh.finish(other)
    mesh.settle(140.0)
    assert mesh.check_prompts(other) == 0


def test_a_word_about_the_other_s_request_changes_nothing() -> None:
    mesh = WholeMesh("p1", "rld1", "md1", routers=("r", "s"), router=RELAYED, wan=6e3)
    client = mesh.submit(PROMPT, 60, router="r")
    mesh.until_ids(client, 4)
    stranger = mesh.routers["s"]
    for name in mesh.workers:
        stranger.mesh.send(name, m.Release(client.rid, 1 << 40))
    mesh.sim.perform(mesh.sim.nodes["s"])
    mesh.finish(client)
    assert sum(mesh.counters(name)["unexpected_messages_total"] for name in mesh.workers) == 3
    mesh.settle()


def test_each_router_s_placements_count_at_the_other_by_the_workers_reports() -> None:
    """Twelve requests at once through two routers that do not speak with one another."""
    mesh = two(wan=0.0, blocks=400)
    clients = []
    for at in range(12):
        clients.append(mesh.submit(prompt(40, at), 100, router="rs"[at % 2]))
        mesh.run(0.15)
    mesh.finish()
    mains = [client.trace["nodes"]["main_decode"] for client in clients]
    assert 4 <= mains.count("md1") <= 8
    mesh.settle()
