"""The failure table's rows of relay and prefill: what dies, when, and how the request goes on."""

from collections.abc import Callable

import pytest

from shared.errors import RequestFailed
from shared.wire import messages as m
from shared.wire.messages import FailReason, Role
from tests.support.fake_mesh import FakeMesh
from tests.support.router_steps import PROMPT, SLOW, client_node, fail, finish, phase, start, until

MakeMesh = Callable[..., FakeMesh]


# --- the relay ----------------------------------------------------------------------------------------------


def test_a_relay_dies_before_the_cut_and_main_decode_goes_on_from_the_log(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(**SLOW)
    rid, client = start(mesh)
    until(mesh, lambda: len(client.ids) > 20)
    mesh.kill("r0")
    assert phase(mesh, rid) == "paused"
    shown = len(client.ids)
    classes = [x.cls for _, to, x in mesh.sent if isinstance(x, m.Attach) and x.target == "m0"]
    assert classes[-1] is m.TransferClass.UNCOVERED
    finish(mesh, client)
    assert client.owners[shown] is Role.MAIN


def test_another_relay_covers_meanwhile(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 2, 1, far=8.0, latency=0.001)
    rid, client = start(mesh)
    until(mesh, lambda: len(client.ids) > 20)
    first = mesh.core.requests[rid].owner
    assert first is not None
    mesh.kill(first.node)
    until(mesh, lambda: phase(mesh, rid) == "relaying", 3.0)
    second = mesh.core.requests[rid].owner
    assert second is not None
    assert second.node != first.node
    finish(mesh, client)
    assert mesh.core.mesh.counters["failed_internal_total"] == 0


@pytest.mark.parametrize(
    "reason", [FailReason.PRESSURE, FailReason.LIMIT, FailReason.DRAIN, FailReason.INTERNAL]
)
def test_a_relay_that_gives_up_leaves_a_pause(make_mesh: MakeMesh, reason: FailReason) -> None:
    mesh = make_mesh(**SLOW)
    rid, client = start(mesh)
    until(mesh, lambda: len(client.ids) > 20)
    fail(mesh, "r0", rid, reason)
    until(mesh, lambda: phase(mesh, rid) == "paused", 1.0)
    finish(mesh, client)
    assert client.owners[-1] is Role.MAIN


@pytest.mark.parametrize("node", ["r0", "p0"])
def test_a_stall_of_a_transfer_that_is_over_is_not_its_sender_s_end(make_mesh: MakeMesh, node: str) -> None:
    """The receiver was complete, or asked again, before the word came: the sender's own part goes on."""
    mesh = make_mesh(**SLOW)
    rid, client = start(mesh)
    until(mesh, lambda: len(client.ids) > 20 if node == "r0" else bool(mesh.workers["p0"].prompts))
    r = mesh.core.requests[rid]
    drawing = r.drawing
    assert drawing is not None
    assert drawing.node == node
    worker = mesh.workers[node]
    worker.net.to_router(worker, m.Failed(rid, drawing.term, b"another ticket..", FailReason.STALLED))
    mesh.run(mesh.now + 0.05)
    assert r.drawing is drawing
    finish(mesh, client)


def test_a_relay_at_its_limit_is_not_followed_by_another(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 2, 1, far=8.0)
    rid, client = start(mesh)
    until(mesh, lambda: len(client.ids) > 20)
    owner = mesh.core.requests[rid].owner
    assert owner is not None
    fail(mesh, owner.node, rid, FailReason.LIMIT)
    mesh.run(mesh.now + 1.0)
    assert mesh.core.requests[rid].relay is None
    finish(mesh, client)


def test_a_relay_that_refuses_leaves_the_road_without_one(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    mesh.workers["r0"].refuse = 1.0
    _, client = start(mesh, 30)
    finish(mesh, client)
    assert set(client.owners) == {Role.PREFILL, Role.MAIN}


def test_a_relay_that_missed_its_first_is_named_owner(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(**SLOW)
    mesh.workers["r0"]._first = lambda first: None  # type: ignore[method-assign]
    _, client = start(mesh)
    finish(mesh, client)
    assert Role.RELAY in client.owners
    assert mesh.core.mesh.counters["relay_firsts_missed_total"] == 1


# --- prefill ------------------------------------------------------------------------------------------------


def test_prefill_dies_before_its_first_id_and_another_takes_over(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 1, 1, pace=5.0)
    rid, client = start(mesh, 30)
    until(mesh, lambda: phase(mesh, rid) == "prefilling")
    drawing = mesh.core.requests[rid].drawing
    assert drawing is not None
    mesh.kill(drawing.node)
    finish(mesh, client)
    assert client.owners[0] is Role.PREFILL


def test_prefill_dies_after_its_first_id_and_a_complete_relay_sends(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 1, 1, **SLOW)
    rid, client = start(mesh, 500)
    until(mesh, lambda: len(client.ids) > 10)
    mesh.sent.clear()
    mesh.kill("p0")
    finish(mesh, client)
    attach = [to for _, to, x in mesh.sent if isinstance(x, m.Attach)]
    assert attach == ["r0"]
    assert client.owners[-1] is Role.MAIN
    assert rid not in mesh.core.requests


def test_prefill_dies_after_its_first_id_and_another_prefills_the_log(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 0, 1, **SLOW)
    _, client = start(mesh, 30)
    until(mesh, lambda: len(client.ids) == 1)
    mesh.sent.clear()
    mesh.kill(client_node(mesh, client))
    finish(mesh, client)
    prefill = next(x for _, _, x in mesh.sent if isinstance(x, m.Prefill))
    assert prefill.prompt_len == len(PROMPT)
    assert client.owners[:2] == [Role.PREFILL, Role.PREFILL]


def test_the_only_prefill_dies_and_main_decode_extends_over_a_short_prompt(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 1, pace=5.0)
    _, client = start(mesh, 30)
    mesh.run(mesh.now + 0.1)
    mesh.kill("p0")
    finish(mesh, client)
    assert client.done is not None
    assert client.done.trace["pipeline"] == "MD"


def test_the_only_prefill_dies_with_a_long_prompt_and_the_request_waits_for_it(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 1, pace=5.0, policy={"md_local_tokens_line_down": 8})
    _, client = start(mesh, 30)
    mesh.run(mesh.now + 0.1)
    mesh.kill("p0")
    mesh.run(mesh.now + 5.0)
    assert not client.over
    mesh.restart("p0")
    finish(mesh, client)


def test_blocks_that_were_evicted_are_prefilled_again(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 1, latency=0.3)
    _, client = start(mesh, 30)
    until(mesh, lambda: "p0" in {w.name for w in mesh.workers.values() if w.prompts})
    prompt = next(iter(mesh.workers["p0"].prompts.values()))
    until(mesh, lambda: prompt.drew is not None)
    mesh.workers["p0"].evict()
    finish(mesh, client)


@pytest.mark.parametrize("reason", [FailReason.INTERNAL, FailReason.NAN])
def test_a_prefill_that_fails_is_tried_elsewhere_then_given_up(
    make_mesh: MakeMesh, reason: FailReason
) -> None:
    mesh = make_mesh(2, 0, 1, pace=5.0, policy={"max_failures": 2, "md_local_tokens_line_down": 8})
    rid, client = start(mesh, 30)
    for _ in range(2):
        until(mesh, lambda: any(w.prompts for w in mesh.workers.values()))
        name = next(w.name for w in mesh.workers.values() if w.prompts)
        fail(mesh, name, rid, reason)
        mesh.run(mesh.now + 0.1)
    until(mesh, lambda: client.over)
    assert isinstance(client.broken, RequestFailed)
    assert reason in str(client.broken)


def test_prefill_that_is_full_is_waited_for(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 1, policy={"md_local_tokens_line_down": 8})
    mesh.workers["p0"].refuse = 1.0
    _, client = start(mesh, 30)
    mesh.run(mesh.now + 3.0)
    assert not client.over
    mesh.workers["p0"].refuse = 0.0
    finish(mesh, client)


def test_two_workers_that_lose_each_other_get_another_ticket(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 0, 1, **SLOW)
    _, client = start(mesh, 30)
    until(mesh, lambda: len(client.ids) == 1)
    mesh.run(mesh.now + 0.3)
    mesh.unlink(client_node(mesh, client), "m0", 10.0)
    finish(mesh, client, 9.0)
    admits = [x for _, to, x in mesh.sent if isinstance(x, m.Admit) and to == "m0"]
    assert len(admits) == 2
