"""The hand-over from relay to main decode: both modes, the relay's limit, and what crosses for it."""

from __future__ import annotations

from typing import Any

import pytest

from shared.engine.synthetic import SyntheticTiming
from shared.wire import messages as m
from tests.support.mesh_client import Client
from tests.support.whole_mesh import BLOCK_BYTES, WholeMesh, policy, prompt, worker_policy

RELAYED = {"md_local_tokens": 0, "singular": False}


def relayed(*, wan: float = 12e3, **changes: Any) -> tuple[WholeMesh, Client]:
    """A long answer to a prompt that takes half a second to cross."""
    mesh = WholeMesh(wan=wan, **changes)
    return mesh, mesh.submit(prompt(82), 250)


def feeds(mesh: WholeMesh, client: Client, do: m.Do) -> list[m.Feed]:
    return [msg for to, msg in mesh.watch.of(m.Feed, client.rid) if to == "md1" and msg.do is do]


def test_one_shot_hands_over_the_whole_backlog_at_once() -> None:
    mesh, client = relayed(router=policy(**RELAYED, catch_up_backlog=1000))
    mesh.finish()
    assert client.trace["cut"]["mode"] == "one_shot"
    assert client.trace["cut"]["backlog"] > 50
    assert not feeds(mesh, client, m.Do.EXTEND)
    assert len(feeds(mesh, client, m.Do.OWN)) == 1
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_catch_up_lets_the_relay_go_on_meanwhile() -> None:
    slow = SyntheticTiming(step=0.02, token=0.0002)
    fast = SyntheticTiming(step=0.002, token=0.0001)
    mesh, client = relayed(
        router=policy(**RELAYED, catch_up_backlog=2), timings={"rld1": slow, "md1": fast}, wan=4e3
    )
    mesh.finish()
    cut = client.trace["cut"]
    assert cut["mode"] == "catch_up"
    assert 1 <= cut["rounds"] <= 2
    rounds = feeds(mesh, client, m.Do.EXTEND)
    assert len(rounds) == cut["rounds"]
    assert client.owners.index(m.Role.MAIN) > rounds[0].start - len(client.ids)
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_catch_up_stalls_less_than_one_shot() -> None:
    slow = SyntheticTiming(step=0.02, token=0.0002)
    fast = SyntheticTiming(step=0.004, token=0.003)
    stalls = {}
    for mode, rounds in (("one_shot", 0), ("catch_up", 2)):
        mesh, client = relayed(
            router=policy(**RELAYED, catch_up_backlog=2, catch_up_rounds=rounds),
            timings={"rld1": slow, "md1": fast},
            wan=4e3,
        )
        mesh.finish()
        assert client.trace["cut"]["mode"] == mode
        at = client.owners.index(m.Role.MAIN)
        stalls[mode] = client.times[at] - client.times[at - 1]
        mesh.settle()
    assert stalls["catch_up"] < 0.8 * stalls["one_shot"]


def test_a_cut_costs_ids_not_blocks() -> None:
    mesh, client = relayed(router=policy(**RELAYED))
    mesh.finish()
    assert client.owners.count(m.Role.RELAY) > 40
    assert client.trace["handoff_bytes"] < 40 * BLOCK_BYTES / 4, "less than the blocks of those ids"
    mesh.settle()
    assert mesh.wan_bytes == 20 * BLOCK_BYTES, "the prompt's blocks and no other"


def test_a_relay_gives_up_at_its_limit_and_main_decode_goes_on_when_it_is_complete() -> None:
    mesh, client = relayed(router=policy(**RELAYED), worker=worker_policy(relay_max_tokens=20), wan=4e3)
    mesh.until(lambda: mesh.counters("rld1").get("failed_limit_total") == 1)
    mesh.run(0.05)
    had = len(client.got)
    assert had == 20, "the relay's run begins with prefill's id"
    mesh.run(0.3)
    assert len(client.got) == had, "the stream pauses, as without a relay"
    assert mesh.watch.of(m.Attach, client.rid)[-1][1].cls is m.TransferClass.UNCOVERED
    mesh.finish()
    assert client.owners[20:] == [m.Role.MAIN] * 230
    mesh.settle()
    assert mesh.check_prompts() == 0


@pytest.mark.parametrize("seed", range(4))
def test_ids_on_their_way_during_the_cut_are_neither_lost_nor_doubled(seed: int) -> None:
    mesh = WholeMesh(
        "p1", "rld1", "rld2", "md1", seed=seed, blocks=600, jitter=0.02, router=policy(**RELAYED), wan=20e3
    )
    for number in range(6):
        mesh.submit(prompt(40 + number, seed=number), 250, seed=number, temperature=1.0)
        mesh.run(0.05)
    mesh.finish()
    assert (
        mesh.core.mesh.counters["cuts_one_shot_total"] + mesh.core.mesh.counters["cuts_catch_up_total"] >= 4
    )
    mesh.settle()
    assert mesh.check_prompts() == 0
