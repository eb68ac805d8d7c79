"""The policy that only the case `collapse` has: what goes to a relay ends there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.mesh.collapse import FINISHING, PLANS, SHIPPED, Watched, nothing_parked
from benchmarks.mesh.options import Options
from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import VirtualMesh

OUTPUTS = 100


def answered(policy: str) -> tuple[float, Watched, Client]:
    """A long prompt that nobody has anything of: bytes that crossed for it, and who got a relay."""
    mesh = VirtualMesh(PLANS[policy], 1)
    placement = mesh.core.mesh.placement = Watched(mesh, ends=policy == FINISHING)
    if policy == FINISHING:
        mesh.sim.translate = nothing_parked
    teach(mesh)
    crossed = mesh.wan_bytes
    client = mesh.submit([(99 + at) % 251 for at in range(8_000)], OUTPUTS, max_tokens=OUTPUTS)
    mesh.drain()
    mesh.run(20.0)
    return mesh.wan_bytes - crossed, placement, client


def teach(mesh: VirtualMesh) -> None:
    """The router hears how fast prefill is."""
    for first in range(2):
        mesh.submit([(7 * first + at) % 253 for at in range(2_000)], 1, max_tokens=1)
    mesh.drain()
    mesh.run(2.0)


def test_an_answer_ends_at_the_relay_and_nothing_follows() -> None:
    crossed, placement, client = answered(FINISHING)
    assert (client.outcome, client.made) == ("done", OUTPUTS)
    assert client.trace["pipeline"] == "P-RLD"
    assert client.relayed == OUTPUTS - 1  # the first is prefill's
    assert crossed == 0
    assert (placement.given, placement.refused) == (1, 0)


def test_the_shipped_policy_brings_main_decode_the_whole_prompt() -> None:
    crossed, placement, client = answered(SHIPPED)
    assert (client.outcome, client.made) == ("done", OUTPUTS)
    assert client.trace["pipeline"] == "P-RLD-MD"
    assert crossed >= 7_900 * PLANS[SHIPPED].token_bytes
    assert placement.given == 1


def test_a_relay_without_a_place_is_counted() -> None:
    mesh = VirtualMesh(replace(PLANS[SHIPPED], relay_running=1), 1)
    placement = mesh.core.mesh.placement = Watched(mesh, ends=False)
    teach(mesh)
    for first in range(3):
        mesh.submit([(first + at) % 251 for at in range(8_000)], OUTPUTS, max_tokens=OUTPUTS)
    mesh.drain()
    assert placement.given >= 1
    assert placement.refused >= 1


def added(one: int, other: int) -> int:
    """What a process is to find."""
    return one + other


@pytest.mark.parametrize("processes", [1, 2])
def test_jobs_are_spread_and_found_in_their_order(processes: int) -> None:
    options = Options(out=Path("unused"), processes=processes)
    assert options.spread(partial(added, 3), [4, 1, 2]) == [7, 4, 5]
