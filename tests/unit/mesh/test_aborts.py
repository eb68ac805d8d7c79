"""A client may leave at any moment: all of its request is given back at once, and others do not notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from shared.errors import ApiError
from shared.wire import messages as m
from tests.support.mesh import VOCAB
from tests.support.mesh_client import Client
from tests.support.whole_mesh import WholeMesh, policy, prompt

RELAYED = policy(md_local_tokens=0, singular=False)
WITHIN = 1.0
"""Seconds within which nothing of an aborted request may be left: a few round trips."""


def prefilling(mesh: WholeMesh, client: Client) -> bool:
    return len(mesh["p1"].worker.rooms.prefilling) > 0 and mesh["p1"].stepping is not None


def sending(mesh: WholeMesh, client: Client) -> bool:
    return mesh.wan_bytes > 0 and not client.got


def relaying(mesh: WholeMesh, client: Client) -> bool:
    return client.owners.count(m.Role.RELAY) == 10


def cutting(mesh: WholeMesh, client: Client) -> bool:
    return any(msg.do is m.Do.OWN for _, msg in mesh.watch.of(m.Feed, client.rid))


def catching_up(mesh: WholeMesh, client: Client) -> bool:
    return any(msg.do is m.Do.EXTEND for _, msg in mesh.watch.of(m.Feed, client.rid))


def at_main(mesh: WholeMesh, client: Client) -> bool:
    return client.owners.count(m.Role.MAIN) == 5


MOMENTS: dict[str, Callable[[WholeMesh, Client], bool]] = {
    "at once": lambda mesh, client: True,
    "before prefill": lambda mesh, client: bool(mesh.watch.of(m.Prefill, client.rid)),
    "during prefill": prefilling,
    "after prefill": lambda mesh, client: len(client.got) == 1,
    "during the transfer": sending,
    "during the relay": relaying,
    "while main decode catches up": catching_up,
    "at the cut": cutting,
    "during main decode": at_main,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_abort_at_any_moment_leaves_nothing(moment: str) -> None:
    mesh = WholeMesh(router=RELAYED, wan=12e3, chunk=64)
    client = mesh.submit(prompt(162), 300)
    mesh.until(lambda: MOMENTS[moment](mesh, client))
    mesh.cancel(client)
    assert not mesh.core.requests
    mesh.run(WITHIN)
    for name, node in mesh.workers.items():
        assert node.worker.idle(), (moment, name, node.worker.counts())
    mesh.settle(1.0)
    again = mesh.submit(prompt(162), 30)
    mesh.finish(again)
    mesh.settle()


def test_the_engine_of_a_left_client_stops_within_a_step() -> None:
    mesh = WholeMesh(router=policy(md_local_tokens=1000), wan=0.0)
    client = mesh.submit(prompt(40), 400)
    mesh.until_ids(client, 10)
    mesh.cancel(client)
    mesh.run(0.02)  # the Release crosses, and the running step ends
    drawn = mesh.counters("md1")["tokens_total"]
    mesh.run(1.0)
    assert mesh.counters("md1")["tokens_total"] == drawn
    mesh.settle(1.0)


@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_aborts_under_load_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    mesh = WholeMesh(
        *("p1", "p2", "rld1", "md1", "md2"),
        seed=seed,
        wan=30e3,
        blocks=160,
        chunk=256,
        jitter=0.005,
        router=RELAYED,
        check_every=10,
    )
    bases = [prompt(80, number) for number in range(4)]
    aborted: list[Client] = []
    kept: list[Client] = []

    def begin(keep: bool) -> None:
        ids = rng.choice(bases)[: rng.randint(4, 80)]
        ids = ids + [rng.randrange(VOCAB) for _ in range(rng.randint(0, 8))]
        try:
            tokens = rng.choice((2, 20, 60)) if keep else 200
            client = mesh.submit(ids, tokens, seed=rng.getrandbits(32), temperature=1.0)
        except ApiError:
            return
        if keep:
            kept.append(client)
        else:
            aborted.append(client)
            mesh.sim.at(mesh.sim.now + rng.random() ** 2 * 0.6, lambda: mesh.cancel(client))

    start: Any = mesh.sim.now
    for number in range(200):
        mesh.sim.at(start + 0.02 * number, lambda: begin(False))
    for number in range(40):
        mesh.sim.at(start + 0.1 * number, lambda: begin(True))
    mesh.run(6.0)
    mesh.until(lambda: all(client.outcome for client in mesh.clients.values()), 60.0)
    assert sum(client.outcome == "cancelled" for client in aborted) == len(aborted) > 190
    assert all(client.outcome == "done" for client in kept if client.error is None)
    assert sum(client.error is not None for client in kept) <= 4, "few are shed"
    mesh.settle(61.0)
