"""What dies, and what happens: every row of the design's failure table, with the tokens unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import Overloaded
from shared.wire import messages as m
from tests.support.mesh_scenes import LONG, PLAIN, RELAYED, at_main, nodes, owner, relaying
from tests.support.whole_mesh import BLOCK_BYTES, WholeMesh, policy, prompt

# --- the relay ----------------------------------------------------------------------------------------------


def test_the_only_relay_dies_and_main_decode_takes_over_when_it_is_complete() -> None:
    mesh, client = relaying()
    mesh.sim.kill("rld1")
    had = len(client.got)
    mesh.run(0.1)
    assert len(client.got) <= had + 1, "nobody draws until the blocks have crossed"
    mesh.finish()
    assert nodes(client) == ["p1", "rld1", "md1"]
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_another_relay_covers_when_one_dies() -> None:
    mesh, client = relaying("p1", "rld1", "rld2", "md1", wan=4e3)
    first = owner(mesh, client)
    other = {"rld1": "rld2", "rld2": "rld1"}[first]
    mesh.sim.kill(first)
    mesh.until(lambda: owner(mesh, client) == other)
    mesh.finish()
    assert nodes(client) == ["p1", first, other, "md1"]
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_a_relay_that_restarts_knows_nothing_and_harms_nothing() -> None:
    mesh, client = relaying()
    mesh.restart("rld1")
    mesh.finish()
    assert nodes(client)[-1] == "md1"
    mesh.settle()
    assert mesh.check_prompts() == 0


# --- prefill ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", [RELAYED, PLAIN], ids=["relayed", "plain"])
def test_prefill_dies_before_its_id_and_another_one_prefills(router: Any) -> None:
    mesh = WholeMesh("p1", "p2", "rld1", "md1", wan=8e3, router=router, blocks=1000)
    client = mesh.submit(prompt(200), 40)
    mesh.run(0.03)
    first = owner(mesh, client)
    assert not client.got
    mesh.sim.kill(first)
    mesh.finish()
    assert nodes(client)[0] == {"p1": "p2", "p2": "p1"}[first]
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_prefill_dies_after_its_id_and_the_relay_sends() -> None:
    mesh, client = relaying()
    mesh.sim.kill("p1")
    mesh.finish()
    assert nodes(client) == ["p1", "rld1", "md1"]
    assert mesh.counters("rld1")["kv_bytes_out_total"] > 10 * BLOCK_BYTES
    mesh.settle()
    assert mesh.check_prompts() == 0
    assert mesh.wan_bytes <= 22 * BLOCK_BYTES, "what had crossed was not sent again"


def test_prefill_dies_after_its_id_without_a_relay_and_another_one_prefills_the_log() -> None:
    mesh = WholeMesh("p1", "p2", "md1", wan=8e3, router=PLAIN)
    client = mesh.submit(prompt(82), 60)
    mesh.until_ids(client, 1)
    mesh.run(0.2)
    crossed = mesh.wan_bytes
    assert 0 < crossed < 20 * BLOCK_BYTES
    first = next(to for to, _ in mesh.watch.of(m.Prefill, client.rid))
    mesh.sim.kill(first)
    mesh.finish()
    again = [msg for to, msg in mesh.watch.of(m.Prefill, client.rid) if to != first]
    assert len(again) == 1
    assert again[0].prompt_len == 82
    assert client.owners[1] is m.Role.PREFILL, "it emits from the log's end"
    mesh.settle()
    assert mesh.wan_bytes <= 22 * BLOCK_BYTES, "main decode got only what it lacked"
    assert mesh.check_prompts() == 0


def test_all_prefills_die_and_main_decode_finishes_alone() -> None:
    mesh = WholeMesh("p1", "md1", wan=8e3, router=policy(relay=False, md_local_tokens_line_down=200))
    client = mesh.submit(prompt(82), 60)
    mesh.until_ids(client, 1)
    mesh.sim.kill("p1")
    mesh.finish()
    assert nodes(client) == ["p1", "md1"]
    mesh.settle()
    assert mesh.check_prompts() == 0


# --- main decode --------------------------------------------------------------------------------------------


def test_main_decode_dies_before_the_cut_and_the_relay_stays_owner() -> None:
    mesh, client = relaying("p1", "rld1", "md1", "md2", wan=4e3)
    first = next(to for to, _ in mesh.watch.of(m.Admit, client.rid) if to.startswith("md"))
    other = {"md1": "md2", "md2": "md1"}[first]
    r = mesh.core.requests[client.rid]
    term = r.log.current
    mesh.sim.kill(first)
    had = len(client.got)
    mesh.until_ids(client, had + 10)
    assert (owner(mesh, client), r.log.current) == ("rld1", term)
    mesh.finish()
    assert nodes(client) == ["p1", "rld1", other]
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_main_decode_dies_after_the_cut_and_the_request_is_placed_anew() -> None:
    mesh, client = at_main("p1", "md1", "md2")
    first = owner(mesh, client)
    other = {"md1": "md2", "md2": "md1"}[first]
    before = mesh.wan_bytes
    mesh.sim.kill(first)
    mesh.finish()
    assert nodes(client)[-1] == other
    assert mesh.wan_bytes - before >= 20 * BLOCK_BYTES, "the blocks are sent again"
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_the_only_main_decode_restarts_and_the_request_goes_on() -> None:
    mesh, client = at_main("p1", "md1")
    mesh.restart("md1")
    mesh.finish()
    assert nodes(client)[-1] == "md1"
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_a_relay_covers_while_main_decode_is_replaced() -> None:
    mesh = WholeMesh("p1", "rld1", "md1", "md2", wan=8e3, router=RELAYED)
    client = mesh.submit(prompt(82), LONG)
    mesh.until(lambda: m.Role.MAIN in client.owners)
    mesh.sim.kill(owner(mesh, client))
    mesh.finish()
    assert list(dict.fromkeys(client.owners)) == [m.Role.PREFILL, m.Role.RELAY, m.Role.MAIN]
    assert [name[:2] for name in nodes(client)][-3:] != ["md", "md"]
    mesh.settle()
    assert mesh.check_prompts() == 0


# --- the line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.1, 3.0])
def test_a_transfer_resumes_after_the_line_broke(seconds: float) -> None:
    mesh, _ = relaying(chunk=100)
    mesh.sim.cut("p1", "md1")
    mesh.run(seconds)
    mesh.sim.heal("p1", "md1")
    mesh.finish()
    mesh.settle()
    assert mesh.check_prompts() == 0
    assert mesh.wan_bytes <= 22 * BLOCK_BYTES, "nothing restarts from zero"


def test_a_line_that_stays_down_is_covered_and_then_left_for_ids_alone() -> None:
    mesh, client = relaying("p1", "rld1", "md1", wan=4e3)
    mesh.sim.lose("p1", "md1")
    mesh.sim.lose("rld1", "md1")
    mesh.finish()
    assert nodes(client)[-1] in ("rld1", "md1")
    mesh.settle()


def test_without_the_line_high_hits_run_at_main_decode_and_low_hits_are_refused() -> None:
    mesh = WholeMesh("p1", "md1", wan=40e3, router=policy(relay=False))
    warm = mesh.submit(prompt(82), 20)
    mesh.finish()
    mesh.settle()
    mesh.sim.lose("p1", "md1")
    mesh.run(0.2)
    again = mesh.submit(warm.log + prompt(20, seed=4), 10)
    mesh.finish()
    assert again.pipeline == "MD"
    with pytest.raises(Overloaded) as refused:
        mesh.fate(mesh.submit(prompt(300, seed=5), 10))
    assert refused.value.retry_after > 0
    mesh.settle()


# --- the router ---------------------------------------------------------------------------------------------


def test_workers_that_lost_their_router_stop_after_two_seconds_and_go_on_when_it_is_back() -> None:
    mesh = WholeMesh("p1", "md1", wan=0.0, router=PLAIN, blocks=800)
    client = mesh.submit(prompt(82), 1500)
    mesh.until_ids(client, 20)
    mesh.sim.cut("r", "md1")
    mesh.run(3.0)
    steps = mesh.counters("md1")["tokens_total"]
    mesh.run(2.0)
    assert mesh.counters("md1")["tokens_total"] == steps, "no id is drawn for a router that is not heard"
    assert len(mesh["md1"].worker.rooms.decoding) == 1, "what it had is kept"
    mesh.sim.heal("r", "md1")
    mesh.finish()
    assert nodes(client) == ["p1", "md1"]
    mesh.settle()


def test_a_dead_routers_requests_are_released_at_the_lease_s_end() -> None:
    mesh, client = at_main("p1", "md1")
    mesh.kill_router()
    mesh.run(5.0)
    assert not mesh["md1"].worker.idle()
    mesh.settle(60.0)
    assert client.outcome == "orphaned"


def test_a_router_born_again_ends_what_its_former_self_had() -> None:
    mesh, _ = at_main("p1", "md1")
    mesh.kill_router()
    mesh.run(0.5)
    mesh.boot_router("r")
    mesh.join()
    mesh.run(0.5)
    assert mesh["md1"].worker.idle()
    again = mesh.submit(prompt(82), 30)
    mesh.finish(again)
    mesh.settle()


def test_two_routers_side_by_side() -> None:
    mesh = WholeMesh("p1", "rld1", "md1", routers=("r", "s"), router=RELAYED, wan=20e3)
    clients = [mesh.submit(prompt(82), 60, router=router) for router in ("r", "s")]
    mesh.run(0.2)
    mesh.kill_router("s")
    mesh.finish(clients[0])
    mesh.settle()
