"""Each row of the failure table: what dies, when, and how the request goes on."""

from collections.abc import Callable

import pytest

from shared.errors import DeadlineExceeded, InvalidRequest, Overloaded, RequestFailed, Unavailable
from shared.wire import messages as m
from shared.wire.messages import FailReason, RefuseReason, Rid, Role
from tests.support.fake_mesh import Client, FakeMesh
from tests.support.fake_workers import FakeWorker, Part

MakeMesh = Callable[..., FakeMesh]
PROMPT = [at % 7 for at in range(101)]
SLOW = {"far": 3.0}


def until(mesh: FakeMesh, condition: Callable[[], bool], seconds: float = 30.0) -> None:
    assert mesh.run(mesh.now + seconds, stop=condition)


def start(mesh: FakeMesh, max_tokens: int = 150, **more: object) -> tuple[Rid, Client]:
    rid = mesh.submit(PROMPT, max_tokens, **more)  # type: ignore[arg-type]
    return rid, mesh.clients[rid]


def finish(mesh: FakeMesh, client: Client, seconds: float = 60.0) -> None:
    until(mesh, lambda: client.over, seconds)
    assert client.done is not None, client.broken


def phase(mesh: FakeMesh, rid: Rid) -> str:
    r = mesh.core.requests.get(rid)
    return "over" if r is None else str(r.phase)


def fail(mesh: FakeMesh, name: str, rid: Rid, reason: FailReason) -> None:
    """A worker gives its part of a request up."""
    worker = mesh.workers[name]
    part, prompt = worker.parts.pop(rid, None), worker.prompts.pop(rid, None)
    if part is not None:
        part.over = True
        term, ticket = max(part.term, part.own_term), part.ticket
    else:
        assert prompt is not None
        term, ticket = prompt.term, b""
    worker.net.to_router(worker, m.Failed(rid, term, ticket, reason, "said the test"))


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
    mesh = make_mesh(1, 2, 1, far=8.0)
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


def client_node(mesh: FakeMesh, client: Client) -> str:
    """The prefill worker of a client's request."""
    rid = next(rid for rid, one in mesh.clients.items() if one is client)
    prefill = mesh.core.requests[rid].prefill
    assert prefill is not None
    return prefill.node


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


# --- the log ------------------------------------------------------------------------------------------------


def owner_of(mesh: FakeMesh, rid: Rid) -> tuple[str, int]:
    owner = mesh.core.requests[rid].owner
    assert owner is not None
    return owner.node, owner.owns


def test_ids_that_are_missing_are_asked_for_again(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    rid, client = start(mesh, 400)
    until(mesh, lambda: phase(mesh, rid) == "main")
    worker = mesh.workers["m0"]
    shown = len(client.ids)
    row, lost = worker._row, [2]

    def lossy(part: Part, start: int) -> None:
        if lost[0]:
            lost[0] -= 1
            return
        row(part, start)

    worker._row = lossy  # type: ignore[method-assign]
    finish(mesh, client)
    assert mesh.core.mesh.counters["resumes_total"] == 1
    assert len(client.ids) == 400 > shown


def test_an_owner_that_does_not_repeat_is_given_up(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 2)
    rid, client = start(mesh, 400)
    until(mesh, lambda: phase(mesh, rid) == "main")
    node, term = owner_of(mesh, rid)
    worker = mesh.workers[node]
    worker._row = lambda part, start: None  # type: ignore[method-assign]
    length = len(PROMPT) + len(client.ids)
    worker.net.to_router(worker, m.TokensOut((m.TokenRow(rid, term, length + 3, (1,)),)))
    until(mesh, lambda: mesh.core.mesh.counters["resumes_total"] == 5)
    finish(mesh, client)


def test_a_sender_that_repeats_other_ids_has_no_part_any_more(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 2)
    rid, client = start(mesh, 200)
    until(mesh, lambda: phase(mesh, rid) == "main" and len(client.ids) > 10)
    node, term = owner_of(mesh, rid)
    worker = mesh.workers[node]
    wrong = (client.ids[-1] + 1) % 50
    row = m.TokenRow(rid, term, len(PROMPT) + len(client.ids) - 1, (wrong, 1))
    worker.net.to_router(worker, m.TokensOut((row,)))
    until(mesh, lambda: mesh.core.mesh.counters["divergence_total"] == 1)
    finish(mesh, client)


def test_rows_of_strangers_change_nothing(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    rid, client = start(mesh, 200)
    until(mesh, lambda: phase(mesh, rid) == "main")
    _, term = owner_of(mesh, rid)
    at = len(PROMPT) + len(client.ids)
    rows = tuple(m.TokenRow(rid, t, at, (49,)) for t in (0, 1, term, term + 1))
    mesh.core.on_message(mesh.now, "p0", m.TokensOut(rows), b"")
    mesh.core.on_message(mesh.now, "nobody", m.TokensOut(rows), b"")
    finish(mesh, client)


def test_a_worker_that_knows_a_dead_request_is_told_to_release_it(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    ghost = Rid(77, 999)
    mesh.sent.clear()
    for _ in range(3):
        row = m.TokenRow(ghost, 4, 10, (1,))
        mesh.core.on_message(mesh.now, "m0", m.TokensOut((row,)), b"")
    mesh.core.on_message(mesh.now, "p0", m.Missing(ghost, b"t", 0), b"")
    mesh.perform()
    releases = [to for _, to, x in mesh.sent if isinstance(x, m.Release) and x.rid == ghost]
    assert sorted(releases) == ["m0", "p0"]


# --- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [0.4, 0.7, 1.5])
def test_the_deadline_ends_a_request_in_any_phase(make_mesh: MakeMesh, deadline: float) -> None:
    mesh = make_mesh(**SLOW)
    _, client = start(mesh, 2000, deadline=deadline, relay_allowed=deadline < 1.5)
    until(mesh, lambda: client.over)
    assert isinstance(client.broken, DeadlineExceeded | Overloaded)


def test_requests_wait_for_room_and_are_served_in_turn(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 1, blocks=60, policy={"queue_wait": 60.0, "md_local_tokens": 1000})
    clients = [mesh.clients[mesh.submit([at] * 20, 150)] for at in range(8)]
    assert mesh.core.snapshot()["requests_waiting"] > 0
    for client in clients:
        finish(mesh, client, 120.0)


def test_what_has_waited_too_long_is_sent_away_with_retry_after(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 1, blocks=60, policy={"queue_wait": 2.0, "md_local_tokens": 1000}, pace=10.0)
    clients = [mesh.clients[mesh.submit([at] * 20, 150)] for at in range(4)]
    until(mesh, lambda: sum(one.over for one in clients) >= 2)
    refused = [one.broken for one in clients if isinstance(one.broken, Overloaded)]
    assert refused
    assert all(one.retry_after >= 1.0 for one in refused)


def test_a_router_that_drains_takes_nothing_new_and_serves_what_it_has(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    _, client = start(mesh, 100)
    mesh.core.drain(mesh.now)
    assert not mesh.core.ready()["ready"]
    with pytest.raises(Unavailable, match="shutting down"):
        start(mesh)
    assert not mesh.core.drained
    finish(mesh, client)
    mesh.settle()
    assert mesh.core.drained


def test_what_a_draining_router_cannot_finish_in_time_is_told(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(policy={"drain": 2.0}, pace=10.0)
    _, client = start(mesh, 2000)
    mesh.run(mesh.now + 0.5)
    mesh.core.drain(mesh.now)
    until(mesh, lambda: client.over, 3.0)
    assert isinstance(client.broken, Unavailable)
    assert mesh.core.drained


def test_a_draining_main_decode_gets_nothing_new_and_finishes_what_it_has(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 1, 2)
    rid, client = start(mesh, 200)
    until(mesh, lambda: phase(mesh, rid) == "main")
    node, _ = owner_of(mesh, rid)
    mesh.workers[node].draining = True
    mesh.workers[node].announce()
    mesh.run(mesh.now + 0.1)
    _, other = start(mesh, 20)
    finish(mesh, other)
    finish(mesh, client)
    assert other.done is not None
    assert client.done is not None
    assert other.done.trace["nodes"]["main_decode"] != node
    assert client.done.trace["nodes"]["main_decode"] == node
