"""Workers that are silent, that drain, or whose bytes arrive damaged: who goes on, tokens unchanged."""

from __future__ import annotations

import pytest

from shared.engine.synthetic import SyntheticTiming
from shared.errors import Overloaded, Unavailable
from shared.wire import messages as m
from tests.support.mesh_scenes import LONG, PLAIN, RELAYED, at_main, nodes, owner, relaying
from tests.support.whole_mesh import WholeMesh, policy, prompt, worker_policy

# --- silence ------------------------------------------------------------------------------------------------


def test_a_silent_main_decode_is_replaced_where_another_one_is() -> None:
    mesh, client = at_main("p1", "md1", "md2")
    first = owner(mesh, client)
    mesh.sim.cut("r", first)
    mesh.finish()
    assert nodes(client)[-1] == {"md1": "md2", "md2": "md1"}[first]
    mesh.sim.heal("r", first)
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_a_silent_main_decode_that_comes_back_before_its_successor_is_ready_goes_on() -> None:
    mesh, client = at_main("p1", "md1", "md2")
    first = owner(mesh, client)
    mesh.wan.rate = 500.0
    mesh.sim.cut("r", first)
    mesh.run(3.0)
    mesh.sim.heal("r", first)
    mesh.finish()
    assert set(nodes(client)[1:]) == {first}
    mesh.settle()


def test_where_everybody_is_silent_the_request_waits() -> None:
    mesh, client = at_main("p1", "md1")
    mesh.sim.cut("r", "md1")
    mesh.sim.cut("r", "p1")
    mesh.run(6.0)
    assert not client.outcome
    for name in ("md1", "p1"):
        mesh.sim.heal("r", name)
    mesh.finish()
    mesh.settle()


def test_a_main_decode_that_gave_no_answer_is_asked_again_as_soon_as_it_is_heard() -> None:
    mesh = WholeMesh("p1", "md1", wan=40e3, router=PLAIN)
    mesh.sim.cut("r", "md1")
    client = mesh.submit(prompt(82), 20)
    mesh.run(5.2)
    assert mesh.core.mesh.counters["admit_timeouts_total"] == 1
    mesh.sim.heal("r", "md1")
    mesh.finish()
    assert client.times[-1] - client.submitted < 6.0
    mesh.settle()


# --- drains -------------------------------------------------------------------------------------------------


def drain(mesh: WholeMesh, name: str) -> None:
    worker = mesh[name]
    mesh.sim.call(worker, lambda: worker.worker.drain(mesh.sim.now))


def test_a_relay_that_drains_gives_up_at_once() -> None:
    mesh, client = relaying()
    drain(mesh, "rld1")
    assert mesh["rld1"].worker.drained
    mesh.finish()
    assert nodes(client) == ["p1", "rld1", "md1"]
    mesh.settle()


@pytest.mark.parametrize("name", ["p1", "md1"])
def test_prefill_and_main_decode_finish_before_they_are_drained(name: str) -> None:
    mesh, client = relaying()
    drain(mesh, name)
    assert not mesh[name].worker.drained
    mesh.finish()
    mesh.run(1.0)
    assert mesh[name].worker.drained
    assert nodes(client) == ["p1", "rld1", "md1"]
    with pytest.raises(Overloaded):
        mesh.fate(mesh.submit(prompt(300, seed=3), 5))
    mesh.settle()


def test_a_router_that_drains_serves_its_streams() -> None:
    mesh, _ = at_main("p1", "md1")
    router = mesh.sim.nodes["r"]
    mesh.sim.call(router, lambda: mesh.core.drain(mesh.sim.now))
    with pytest.raises(Unavailable):
        mesh.submit(prompt(8), 5)
    mesh.finish()
    assert mesh.core.drained
    mesh.settle()


# --- KV -----------------------------------------------------------------------------------------------------


def test_damaged_chunks_are_asked_for_again() -> None:
    mesh = WholeMesh("p1", "rld1", "md1", router=RELAYED, wan=12e3, chunk=100)
    count = 0

    def spoil(chunk: m.KvChunk, data: bytearray) -> None:
        nonlocal count
        count += 1
        if count % 5 == 0:
            data[count % len(data)] ^= 0x40

    mesh.sim.damage = spoil
    client = mesh.submit(prompt(82), LONG)
    mesh.finish()
    assert nodes(client) == ["p1", "rld1", "md1"]
    assert mesh.counters("md1")["chunks_damaged_total"] >= 5
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_a_line_that_damages_everything_is_given_up_and_the_mesh_lives() -> None:
    mesh = WholeMesh("p1", "md1", router=policy(relay=False, md_local_tokens=0), wan=20e3)
    mesh.sim.damage = lambda chunk, data: data.__setitem__(0, data[0] ^ 1)
    client = mesh.submit(prompt(82), 20)
    mesh.until(lambda: bool(client.outcome), 60.0)
    mesh.sim.damage = lambda chunk, data: None
    mesh.run(31.0)  # main decode gets no work for a while
    other = mesh.submit(prompt(60, seed=2), 20)
    mesh.finish(other)
    mesh.settle()


# --- slowness -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("p1", "md1"), ("md1",)], ids=["prefill", "main decode alone"])
def test_a_slow_engine_is_not_taken_for_one_that_makes_no_steps(names: tuple[str, ...]) -> None:
    """A whole chunk would take 13 s there."""
    mesh = WholeMesh(
        *names,
        blocks=1000,
        wan=1e6,
        worker=worker_policy(max_chunk_tokens=512),
        router=policy(relay=False, md_local_tokens=0, md_local_tokens_line_down=4000),
        timing=SyntheticTiming(step=0.004, token=0.025),
    )
    first = mesh.submit(prompt(450), 3, deadline=600.0)
    mesh.until(lambda: bool(first.outcome), 200.0)
    client = mesh.submit(prompt(600, seed=2), 3, deadline=600.0)
    mesh.until(lambda: bool(client.outcome), 200.0)
    assert (first.outcome, client.outcome) == ("done", "done")
    assert mesh.core.mesh.counters["owner_stalls_total"] == 0
    mesh.settle()
