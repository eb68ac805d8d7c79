"""When main decode takes over from relays: right after an id of the relay, and few requests at a time."""

from __future__ import annotations

import pytest

from services.router.lifecycle import Request
from services.router.phases import Phase
from shared.engine.synthetic import SyntheticTiming
from shared.wire import messages as m
from tests.support.whole_mesh import WholeMesh, policy, prompt, worker_policy

RELAYED = {"md_local_tokens": 0, "singular": False, "relay_margin": -10.0}
SLOW = SyntheticTiming(step=0.02, token=0.0002)


@pytest.mark.parametrize("backlog", [0, 1000], ids=["catch-up", "one-shot"])
def test_the_wait_at_the_seam_begins_with_an_id_of_the_relay(backlog: int) -> None:
    mesh = WholeMesh(wan=4e3, router=policy(**RELAYED, catch_up_backlog=backlog), timings={"rld1": SLOW})
    client = mesh.submit(prompt(82), 120)
    mesh.until(lambda: client.owners[-1:] == [m.Role.RELAY])
    r = mesh.core.requests[client.rid]
    mesh.until(lambda: r.phase is Phase.MAIN)
    assert client.owners[-1] is m.Role.RELAY
    assert r.trace.marks["cut"] == client.times[-1]
    mesh.finish()
    mesh.settle()


def moving(requests: dict[m.Rid, Request]) -> int:
    return sum(
        r.phase is Phase.CATCHING_UP or (r.phase is Phase.MAIN and "main_first" not in r.trace.marks)
        for r in requests.values()
    )


def most_at_once(mesh: WholeMesh, count: int) -> int:
    """Requests that become complete together: how many main decode takes over at the same time."""
    mesh.sim.cut("p1", "md1")
    clients = [mesh.submit(prompt(40, seed), 150) for seed in range(count)]
    mesh.until(lambda: all(len(client.got) > 3 for client in clients))
    mesh.sim.heal("p1", "md1")
    most = 0

    def ended() -> bool:
        nonlocal most
        most = max(most, moving(mesh.core.requests))
        return all(client.outcome for client in clients)

    mesh.until(ended, 60.0)
    mesh.finish()
    assert all(client.owners[-1] is m.Role.MAIN for client in clients)
    mesh.settle()
    return most


@pytest.mark.parametrize("backlog", [4, 1000], ids=["catch-up", "one-shot"])
def test_few_are_taken_over_at_once(backlog: int) -> None:
    """Relays with room go on until their turn has come."""
    mesh = WholeMesh(
        wan=0.0,
        blocks=600,
        router=policy(**RELAYED, catch_up_backlog=backlog, cuts_at_once=2),
        worker=worker_policy(max_running=32),
        timings={"rld1": SLOW, "md1": SyntheticTiming(step=0.02, token=0.0005)},
    )
    assert most_at_once(mesh, 10) == 2


def test_a_relay_without_room_is_left_at_once() -> None:
    mesh = WholeMesh(
        wan=0.0,
        blocks=600,
        router=policy(**RELAYED, catch_up_backlog=4, cuts_at_once=1),
        worker=worker_policy(max_running=8),
        timings={"rld1": SLOW},
    )
    assert most_at_once(mesh, 8) > 1
