"""The failure table's rows of main decode, and of workers that fall silent."""

from collections.abc import Callable

import pytest

from shared.errors import InvalidRequest, Unavailable
from shared.wire import messages as m
from shared.wire.messages import FailReason, RefuseReason, Role
from tests.support.fake_mesh import FakeMesh
from tests.support.fake_workers import FakeWorker
from tests.support.router_steps import SLOW, client_node, fail, finish, phase, start, until

MakeMesh = Callable[..., FakeMesh]


# --- main decode --------------------------------------------------------------------------------------------


def test_main_decode_dies_before_the_cut_and_the_relay_stays_owner(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 1, 2, **SLOW)
    rid, client = start(mesh, 250)
    until(mesh, lambda: len(client.ids) > 20)
    main, owner = mesh.core.requests[rid].main, mesh.core.requests[rid].owner
    assert main is not None
    mesh.kill(main.node)
    assert phase(mesh, rid) == "relaying"
    assert mesh.core.requests[rid].owner is owner
    finish(mesh, client)
    assert client.done is not None
    assert client.done.trace["nodes"]["main_decode"] != main.node


def test_main_decode_dies_after_the_cut_and_the_request_is_placed_anew(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 1, 2)
    rid, client = start(mesh)
    until(mesh, lambda: phase(mesh, rid) == "main" and len(client.ids) > 60)
    main = mesh.core.requests[rid].main
    assert main is not None
    shown = len(client.ids)
    mesh.kill(main.node)
    finish(mesh, client)
    assert client.done is not None
    assert client.done.trace["nodes"]["main_decode"] != main.node
    assert client.owners[shown] in (Role.PREFILL, Role.MAIN)


@pytest.mark.parametrize("left", [1, 2])
def test_main_decode_dies_just_before_the_end(make_mesh: MakeMesh, left: int) -> None:
    mesh = make_mesh(1, 1, 2)
    rid, client = start(mesh, 80)
    until(mesh, lambda: len(client.ids) >= 80 - left or client.over)
    r = mesh.core.requests.get(rid)
    if r is not None and r.main is not None:
        mesh.kill(r.main.node)
    finish(mesh, client)
    assert len(client.ids) == 80


def test_the_only_main_decode_restarts_and_the_stream_goes_on(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    rid, client = start(mesh)
    until(mesh, lambda: phase(mesh, rid) == "main")
    mesh.kill("m0")
    mesh.run(mesh.now + 4.0)
    assert not client.over
    mesh.restart("m0")
    finish(mesh, client)


def test_with_no_main_decode_for_long_the_client_is_told(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(policy={"replace_wait": 5.0})
    rid, client = start(mesh)
    until(mesh, lambda: phase(mesh, rid) == "main")
    mesh.kill("m0")
    until(mesh, lambda: client.over)
    assert isinstance(client.broken, Unavailable)
    assert "5 s" in str(client.broken)


def test_a_grammar_that_cannot_be_followed_is_the_clients_and_nobody_is_blamed(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 1, 2)
    rid, client = start(mesh)
    until(mesh, lambda: phase(mesh, rid) == "main" and len(client.ids) > 20)
    main = mesh.core.requests[rid].main
    assert main is not None
    fail(mesh, main.node, rid, FailReason.GRAMMAR)
    until(mesh, lambda: client.over)
    assert isinstance(client.broken, InvalidRequest)
    assert mesh.core.requests == {}


@pytest.mark.parametrize("reason", [FailReason.REVOKED, FailReason.PARKED, FailReason.INTERNAL])
def test_a_main_decode_that_gives_up_is_asked_again(make_mesh: MakeMesh, reason: FailReason) -> None:
    mesh = make_mesh()
    rid, client = start(mesh)
    until(mesh, lambda: rid in mesh.workers["m0"].parts and len(client.ids) > 5)
    fail(mesh, "m0", rid, reason)
    finish(mesh, client)


def test_main_decode_refuses_for_want_of_blocks_and_another_is_asked(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 1, 2)
    mesh.workers["m0"].refuse = 1.0
    clients = [start(mesh, 20)[1] for _ in range(4)]
    for client in clients:
        finish(mesh, client)
        assert client.done is not None
        assert client.done.trace["nodes"]["main_decode"] == "m1"


@pytest.mark.parametrize(
    ("reason", "error"), [(RefuseReason.BAD_REQUEST, InvalidRequest), (RefuseReason.TOO_LONG, InvalidRequest)]
)
def test_a_refusal_that_no_other_worker_would_lift_ends_the_request(
    make_mesh: MakeMesh, reason: RefuseReason, error: type[Exception]
) -> None:
    mesh = make_mesh()
    began = mesh.now

    def refuse(admit: m.Admit, ids: list[int]) -> None:
        worker = mesh.workers["m0"]
        worker.net.to_router(worker, m.Refused(admit.rid, admit.term, reason, 0, "no such thing"))

    mesh.workers["m0"]._admit = refuse  # type: ignore[method-assign]
    _, client = start(mesh)
    until(mesh, lambda: client.over)
    assert isinstance(client.broken, error)
    assert mesh.now - began < 1.0
    mesh.run(mesh.now + 0.1)
    assert not mesh.workers["p0"].prompts


def test_a_prompt_that_every_prefill_worker_finds_too_long_is_the_clients_fault(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 0, 1, policy={"md_local_tokens_line_down": 8})
    for name in ("p0", "p1"):
        worker = mesh.workers[name]

        def refuse(prefill: m.Prefill, ids: list[int], worker: FakeWorker = worker) -> None:
            refused = m.Refused(prefill.rid, prefill.term, RefuseReason.TOO_LONG, 0, "at most 64 tokens")
            worker.net.to_router(worker, refused)

        worker._prefill = refuse  # type: ignore[method-assign]
    began = mesh.now
    _, client = start(mesh)
    until(mesh, lambda: client.over)
    assert isinstance(client.broken, InvalidRequest)
    assert "at most 64 tokens" in str(client.broken)
    assert mesh.now - began < 1.0


def test_a_main_decode_that_does_not_answer_is_left_for_another(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 1, 2, policy={"admit_timeout": 1.0})
    mesh.workers["m0"]._admit = lambda admit, ids: None  # type: ignore[method-assign]
    _, client = start(mesh, 20)
    finish(mesh, client)
    assert mesh.core.mesh.counters["admit_timeouts_total"] == 1


def test_an_engine_that_makes_no_steps_loses_what_it_draws(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 2)
    rid, client = start(mesh)
    until(mesh, lambda: phase(mesh, rid) == "main" and len(client.ids) > 20)
    main = mesh.core.requests[rid].main
    assert main is not None
    worker = mesh.workers[main.node]
    worker._step = lambda part: None  # type: ignore[method-assign]
    worker.report = lambda: None  # type: ignore[method-assign]
    finish(mesh, client)
    assert mesh.core.mesh.counters["owner_stalls_total"] == 1


# --- silence ------------------------------------------------------------------------------------------------


def test_a_silent_relay_is_left_for_a_complete_main_decode(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(policy={"catch_up_backlog": 0, "catch_up_rounds": 2})
    rid, client = start(mesh, 400)
    until(mesh, lambda: phase(mesh, rid) == "catching_up")
    mesh.workers["m0"]._extend = lambda part: None  # type: ignore[method-assign]
    mesh.silence("r0", 8.0)
    until(mesh, lambda: phase(mesh, rid) == "main", 3.0)
    finish(mesh, client)


def test_a_silent_prefill_is_replaced_where_there_is_another(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 1, 1, pace=5.0)
    rid, client = start(mesh, 30)
    mesh.run(mesh.now + 0.1)
    name = client_node(mesh, client)
    mesh.kill(name, noticed=False)
    r = mesh.core.requests[rid]
    until(mesh, lambda: r.prefill is not None and r.prefill.node != name, 3.0)
    finish(mesh, client)
    assert rid not in mesh.core.requests


def test_main_decode_begins_without_the_id_of_a_silent_prefill(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 1, 1, pace=5.0)
    rid, client = start(mesh, 30)
    mesh.run(mesh.now + 0.1)
    mesh.silence(client_node(mesh, client), 20.0)
    until(mesh, lambda: phase(mesh, rid) == "main", 3.0)
    finish(mesh, client)
    assert set(client.owners) == {Role.MAIN}


def test_a_silent_main_decode_keeps_owning_until_its_successor_is_ready(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 2, far=2.0)
    rid, client = start(mesh, 400)
    until(mesh, lambda: phase(mesh, rid) == "main")
    r = mesh.core.requests[rid]
    old = r.main
    assert old is not None
    mesh.silence(old.node, 25.0)
    until(mesh, lambda: r.displaced is old, 3.0)
    assert r.owner is old
    until(mesh, lambda: r.owner is not old, 10.0)
    finish(mesh, client)


def test_a_main_decode_that_is_back_in_time_goes_on(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 2, far=20.0)
    rid, client = start(mesh, 400, relay_allowed=False)
    until(mesh, lambda: phase(mesh, rid) == "main", 60.0)
    r = mesh.core.requests[rid]
    old = r.main
    assert old is not None
    mesh.silence(old.node, 3.0)
    until(mesh, lambda: r.displaced is old, 4.0)
    until(mesh, lambda: r.main is old, 3.0)
    assert r.displaced is None
    finish(mesh, client)
    assert client.done is not None
    assert client.done.trace["cut"]["count"] == 1


def test_where_all_candidates_are_silent_the_request_waits(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    rid, client = start(mesh, 200)
    until(mesh, lambda: phase(mesh, rid) == "main")
    mesh.silence("m0", 9.0)
    mesh.run(mesh.now + 8.0)
    assert not client.over
    finish(mesh, client)


def test_a_new_request_waits_for_silent_workers_and_is_then_told(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(policy={"queue_wait": 5.0})
    mesh.silence("m0", 20.0)
    mesh.run(mesh.now + 3.0)
    _, client = start(mesh)
    mesh.run(mesh.now + 4.0)
    assert not client.over
    until(mesh, lambda: client.over)
    assert isinstance(client.broken, Unavailable)
    assert "silent" in str(client.broken)
