"""The loads of the mesh's benchmarks: prompts that share what the trace says, runs that a seed repeats."""

from __future__ import annotations

import pytest

from benchmarks.mesh.trace_load import TraceLoad, drawn_rows
from benchmarks.mesh.traffic import Mix, Traffic
from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh
from benchmarks.simulation.timed import STOP, answer_of, seed_for

ROWS = [
    [
        (0.0, 1000, 50, -1, 0, 0.0, 0.0),
        (10.0, 1400, 60, 0, 960, 0.0, 0.0),  # goes on from all of the first
        (20.0, 900, 10, 0, 640, 0.0, 0.0),  # from a part of it
    ]
]
SMALL = Mix(first=1_000, added=200, output=20, tenants=2)


def load_of(seed: int = 1) -> TraceLoad:
    return TraceLoad(ROWS, seed, pace=30.0, seconds=1e6)


def test_a_turn_begins_with_all_that_was_said_before() -> None:
    load = load_of()
    first, second, third = (load.prompt(0, at) for at in range(3))
    assert [len(first), len(second), len(third)] == [1000, 1400, 900]
    assert second[:1050] == first + answer_of(load.seed_of(0, 0), 1000) == load.said(0, 0)
    assert third[:640] == first[:640]
    assert third[640:700] != first[640:700]


def test_what_a_decoder_lacks_is_what_the_turn_adds() -> None:
    assert sorted(each.lacks for each in load_of().asked) == [260, 350, 1000]
    assert load_of().lacking == 1610


def test_a_seed_repeats_a_load() -> None:
    assert load_of().asked == load_of().asked
    assert load_of().prompt(0, 1) == load_of().prompt(0, 1) != load_of(2).prompt(0, 1)


def test_drawn_sessions_are_mostly_small_additions() -> None:
    rows = [row for session in drawn_rows(1, 50) for row in session if row[3] >= 0]
    added = sorted(row[1] - row[4] for row in rows)
    assert 200 < added[len(added) // 2] < 2000
    assert added[-len(added) // 100] > 5 * added[len(added) // 2]


def answered(seed: int, plan: MeshPlan) -> list[Client]:
    mesh = VirtualMesh(plan, seed)
    traffic = Traffic(mesh, SMALL, seed)
    traffic.warm(10)
    traffic.poisson(20.0, 2.0)
    mesh.run(2.0)
    assert mesh.drain()
    return mesh.clients


def test_a_run_is_the_same_again() -> None:
    plan = MeshPlan()
    one, other = answered(1, plan), answered(1, plan)
    assert [(each.submitted, each.ttst, each.ended) for each in one] == [
        (each.submitted, each.ttst, each.ended) for each in other
    ]
    assert {each.outcome for each in one} == {"done"}
    assert all(each.got[-1] == STOP for each in one)
    assert sum(each.trace["md_hit_tokens"] > 0 for each in one) > len(one) / 2, "sessions were warm"


def test_a_slower_line_takes_longer_by_its_bytes() -> None:
    plan = MeshPlan(wan_rate=1e9 / 8, wan_rtt=0.1, prefills=1, relays=0, mains=1)
    mesh = VirtualMesh(plan, 1)
    client = mesh.submit(list(range(200)) * 32, 5)
    assert mesh.drain()
    blocks = 6400 // plan.block_tokens
    seconds = blocks * plan.block_tokens * plan.token_bytes / plan.wan_rate
    assert client.ttst == pytest.approx(seconds + 6400 / 15_000, rel=0.15)
    assert mesh.wan_bytes == pytest.approx(seconds * plan.wan_rate, rel=0.01)


def test_the_seed_says_how_long_an_answer_gets() -> None:
    mesh = VirtualMesh(MeshPlan(), 1)
    client = mesh.submit([1] * 500, 37)
    mesh.drain()
    assert client.made == 37
    assert answer_of(seed_for(5, 3), 10)[-1] == STOP
