"""Requests under random loads, orders and faults: every client sees each position once, in order and right
(I1), every request ends, terms only grow, every worker is told of the end, and nothing is left in any
book.
"""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ApiError, MeshError
from shared.policy.config import RouterPolicy
from shared.wire.messages import Rid
from tests.support.fake_mesh import FakeMesh, roles

FAULTS = ("kill", "quiet kill", "silence", "long silence", "unlink", "evict", "drain")


@dataclass
class Story:
    """One run: a mesh, clients that come, leave and stop, and faults."""

    rng: random.Random
    mesh: FakeMesh
    refused: list[MeshError] = field(default_factory=list)
    told: list[tuple[float, str, str]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    def request(self) -> None:
        rng, mesh = self.rng, self.mesh
        ids = rng.choice(self.prompts)[: rng.randint(1, 120)] + [
            rng.randrange(50) for _ in range(rng.randint(0, 20))
        ]
        stops = rng.sample(range(50), rng.choice((0, 2)))
        try:
            rid = mesh.submit(
                ids,
                rng.choice((1, 2, 10, 60)),
                stops=stops,
                relay_allowed=rng.random() < 0.9,
                local_allowed=rng.random() < 0.9,
                tenant=rng.choice("ab"),
                session=rng.choice((b"", b"s")),
            )
        except MeshError as error:
            self.refused.append(error)
            mesh.perform()
            return
        chance = rng.random()
        if chance < 0.15:
            mesh.at(mesh.now + rng.random(), lambda: mesh.cancel(rid))
        elif chance < 0.3:
            mesh.at(mesh.now + rng.random(), lambda: self.stop(rid))

    def stop(self, rid: Rid) -> None:
        client = self.mesh.clients[rid]
        if not client.over and client.ids:
            self.mesh.stop_at(rid, len(client.prompt) + self.rng.randint(1, len(client.ids)))

    def fault(self) -> None:
        rng, mesh = self.rng, self.mesh
        name, kind = rng.choice(list(mesh.workers)), rng.choice(FAULTS)
        self.told.append((round(mesh.now, 3), kind, name))
        match kind:
            case "kill" | "quiet kill":
                mesh.kill(name, noticed=kind == "kill")
                mesh.at(mesh.now + rng.choice((0.05, 1.0, 6.0)), lambda: mesh.restart(name))
            case "silence":
                mesh.silence(name, rng.choice((0.5, 3.0, 8.0)))
            case "long silence":
                mesh.silence(name, 35.0)
                mesh.at(mesh.now + 36.0, lambda: mesh.restart(name))
            case "unlink":
                mesh.unlink(name, rng.choice(list(mesh.workers)), rng.choice((0.5, 5.0)))
            case "evict":
                mesh.workers[name].evict()
            case "drain":
                self.drain(name, on=True)
                mesh.at(mesh.now + 3.0, lambda: self.drain(name, on=False))

    def drain(self, name: str, *, on: bool) -> None:
        worker = self.mesh.workers[name]
        worker.draining = on
        worker.announce()


def run(seed: int, requests: int, faults: int, **worker: float) -> Story:
    """Play a story to its end."""
    rng = random.Random(seed)
    policy = RouterPolicy(
        md_local_tokens=rng.choice((0, 8, 40)),
        md_local_tokens_line_down=rng.choice((8, 4096)),
        md_local_busy=rng.choice((1.0, 16.0)),
        singular_min_uncached=40,
        catch_up_backlog=rng.choice((1, 4, 64)),
        catch_up_rounds=rng.choice((1, 2)),
        default_deadline=rng.choice((300.0, 5.0)),
    )
    mesh = FakeMesh(
        seed,
        roles(rng.randint(1, 3), rng.randint(0, 2), rng.randint(1, 3)),
        policy,
        latency=rng.choice((0.002, 0.03, 0.2)),
        pace=rng.choice((1.0, 3.0)),
        **worker,
    )
    mesh.run(1.0)
    story = Story(rng, mesh)
    story.prompts = [[rng.randrange(50) for _ in range(120)] for _ in range(3)]
    for _ in range(requests):
        mesh.at(1.0 + 2 * rng.random(), story.request)
    for _ in range(faults):
        mesh.at(1.0 + 3 * rng.random(), story.fault)
    mesh.run(4.5)
    mesh.settle()
    mesh.run(mesh.now + 60.0)
    return story


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32))
def test_a_healthy_mesh_serves_everything(seed: int) -> None:
    story = run(seed, requests=10, faults=0)
    assert story.mesh.problems() == []
    ends = [client.broken for client in story.mesh.clients.values() if client.broken is not None]
    assert all("deadline" in str(error) or "line" in str(error) for error in ends)


@settings(max_examples=120)
@given(seed=st.integers(0, 1 << 32), faults=st.integers(1, 8))
def test_whatever_dies_each_position_is_seen_once_and_every_request_ends(seed: int, faults: int) -> None:
    story = run(seed, requests=10, faults=faults)
    assert story.mesh.problems() == [], story.told
    ends = [client.broken for client in story.mesh.clients.values() if client.broken is not None]
    assert all(isinstance(error, ApiError) for error in ends + story.refused)


@settings(max_examples=80)
@given(seed=st.integers(0, 1 << 32), faults=st.integers(0, 4))
def test_workers_that_refuse_and_fail_at_random(seed: int, faults: int) -> None:
    story = run(seed, requests=10, faults=faults, refuse=0.2, fail=0.2)
    assert story.mesh.problems() == [], story.told
