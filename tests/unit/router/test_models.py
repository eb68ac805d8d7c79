"""Workers of several models behind one router's core: they are not told of one another, and neither waits for
the other's room.
"""

from __future__ import annotations

import pytest

from services.router.admissions import Admissions
from shared.errors import Overloaded
from shared.policy.config import RouterPolicy
from shared.wire import messages as m
from shared.wire.messages import Role
from tests.support.fake_mesh import FakeMesh

PROMPT = [at % 7 for at in range(101)]
ROLES = {
    name + model: role
    for model in ("", ".big")
    for name, role in (("p0", Role.PREFILL), ("r0", Role.RELAY), ("m0", Role.MAIN))
}


def test_workers_hear_of_those_that_run_their_model_alone() -> None:
    mesh = FakeMesh(1, ROLES)
    mesh.run(1.0)
    for name in ROLES:
        told = mesh.said(m.Peers, name)
        assert told
        for message in told:
            nodes = {node for node, *_ in message.nodes}
            assert nodes <= {one for one in ROLES if one.endswith(".big") == name.endswith(".big")}
        assert len({node for node, *_ in told[-1].nodes}) == 3


def test_a_request_goes_to_the_workers_of_its_model() -> None:
    mesh = FakeMesh(1, ROLES)
    mesh.run(1.0)
    for model, ending in (("big", ".big"), ("fake", "")):
        mesh.sent.clear()
        mesh.submit(PROMPT, 30, model=model)
        assert mesh.settle()
        asked = {to for _, to, x in mesh.sent if isinstance(x, m.Admit | m.Prefill | m.Attach)}
        assert asked
        assert asked <= {f"{name}0{ending}" for name in "prm"}
    mesh.run(mesh.now + 40.0)
    assert mesh.problems() == []


def test_a_model_without_room_keeps_no_request_of_another_waiting() -> None:
    mesh = FakeMesh(1, ROLES, RouterPolicy(relay=False), blocks=60)
    mesh.run(1.0)
    big = [mesh.submit([at, *PROMPT], 60, model="big") for at in range(12)]
    assert mesh.core.snapshot()["requests_waiting"] > 4
    rid = mesh.submit(PROMPT, 10, model="fake")
    assert not mesh.core.requests[rid].waiting
    mesh.run(mesh.now + 300.0, lambda: mesh.clients[rid].over)
    assert sum(mesh.clients[one].over for one in big) < 6
    assert mesh.settle()
    mesh.run(mesh.now + 40.0)
    assert mesh.problems() == []


def test_each_model_has_a_waiting_room_of_its_own() -> None:
    admissions = Admissions(RouterPolicy(max_waiting=1))
    admissions.of("a").enter(0.0, m.Rid(1, 1), "t", 0, 10)
    with pytest.raises(Overloaded):
        admissions.of("a").enter(0.0, m.Rid(1, 2), "t", 0, 10)
    admissions.of("b").enter(0.0, m.Rid(1, 3), "t", 0, 10)
    assert (admissions.waiting, admissions.refused) == (2, 1)
    assert admissions.of("a") is admissions.of("a")
