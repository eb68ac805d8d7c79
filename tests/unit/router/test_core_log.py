"""What the core does where ids are missing, wrong or of strangers; and the limits of a request."""

from collections.abc import Callable

import pytest

from shared.errors import DeadlineExceeded, Overloaded, Unavailable
from shared.wire import messages as m
from shared.wire.messages import Rid
from tests.support.fake_mesh import FakeMesh
from tests.support.fake_parts import Part
from tests.support.router_steps import PROMPT, SLOW, finish, owner_of, phase, start, until

MakeMesh = Callable[..., FakeMesh]


# --- the log ------------------------------------------------------------------------------------------------


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


def test_what_has_waited_longest_is_not_overtaken_for_ever(make_mesh: MakeMesh) -> None:
    """More urgent requests never cease to wait, and would always be served first."""
    mesh = make_mesh(1, 0, 1, blocks=60, policy={"queue_wait": 20.0, "md_local_tokens": 1000})
    urgent = [mesh.clients[mesh.submit([at] * 20, 150)] for at in range(3)]
    late = mesh.clients[mesh.submit([9] * 20, 150, priority=5)]
    came = mesh.now
    while not late.over:
        if mesh.core.snapshot()["requests_waiting"] < 3:
            urgent.append(mesh.clients[mesh.submit([len(urgent) % 7] * 20, 150)])
        assert mesh.run(
            mesh.now + 60.0, stop=lambda: mesh.core.snapshot()["requests_waiting"] < 3 or late.over
        )
    assert late.done is not None, late.broken
    assert late.ended_at - came < 20.0
    assert sum(one.done is not None for one in urgent) > 3


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
