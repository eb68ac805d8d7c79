"""Clients that leave at any moment: within two seconds nothing of their requests is anywhere (I3)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from services.router.lifecycle import Request
from shared.policy.pipeline import Pipeline
from tests.support.live_client import Answer, Refused
from tests.support.live_judge import crowd, synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_moments import MOMENTS
from tests.support.live_roads import MIXED, ROADS
from tests.support.live_shape import Shape

CLEAN_WITHIN = 2.0


def shape_of(road: str, **more: Any) -> Shape:
    given: dict[str, Any] = {
        "rate_mbit": 4.0,
        "rtt_ms": 2.0,
        "router": ROADS[road][1],
        "synthetic": {"step_ms": 3.0, "prefill_tokens_per_second": 4000.0},
        "worker": {"max_chunk_tokens": 64},
        **more,
    }
    return Shape(**given)


async def leave(mesh: LiveMesh, asking: asyncio.Task[Answer], when: Callable[[], bool]) -> None:
    """Drop the client's connection as soon as `when` holds."""
    try:
        await mesh.until(when, what=lambda: (mesh.held(), asking))
    finally:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking


@pytest.mark.parametrize("road", MOMENTS)
async def test_whatever_the_moment_nothing_is_left(road: str, synthetic: SyntheticModel) -> None:
    async with live_mesh(synthetic, shape_of(road)) as mesh:
        for number, moment in enumerate(MOMENTS[road]):
            prompt = [3 + number, *range(3, 243)]
            asking = asyncio.create_task(
                mesh.client.streamed(prompt, 20 if road == "singular" else 300, ignore_eos=True)
            )

            def now(moment: Callable[[LiveMesh, Request], bool] = moment) -> bool:
                return any(moment(mesh, r) for r in mesh.router.core.requests.values())

            await leave(mesh, asking, now)
            await mesh.settled(within=CLEAN_WITHIN)
            await mesh.flush()
        assert mesh.count("router-0", "requests_cancelled_total") == len(MOMENTS[road])


async def test_a_deadline_is_an_abort_too(synthetic: SyntheticModel) -> None:
    async with live_mesh(synthetic, shape_of("one_shot", blocks=1024)) as mesh:
        with pytest.raises(Refused) as caught:
            await mesh.client.complete(range(3, 63), 3000, ignore_eos=True, timeout=0.6)
        assert caught.value.error["code"] == "deadline_exceeded"
        await mesh.settled(within=CLEAN_WITHIN)


class Storm:
    """Requests of all kinds, most of which are left at a random number of events."""

    def __init__(self, mesh: LiveMesh, seed: int) -> None:
        self._mesh = mesh
        self._draw = random.Random(seed)
        self._stems = [[self._draw.randrange(3, 250) for _ in range(400)] for _ in range(5)]
        self.finished = 0

    async def run(self, requests: int, at_once: int) -> None:
        gate = asyncio.Semaphore(at_once)

        async def one() -> None:
            async with gate:
                await self._one()

        await crowd(*(one() for _ in range(requests)))

    async def _one(self) -> None:
        draw, mesh = self._draw, self._mesh
        stem = draw.choice(self._stems)
        prompt = stem[: draw.randrange(1, 400)] + [
            draw.randrange(3, 250) for _ in range(draw.randrange(0, 9))
        ]
        tokens = draw.choice((1, 2, 10, 40, 120, 250))
        way = draw.choice((mesh.client.complete, mesh.client.streamed))
        parent = f"00-{draw.getrandbits(120) + 1:032x}-{1:016x}-01"
        without = draw.choice(("", "", "relay"))
        asking = asyncio.create_task(way(prompt, tokens, ignore_eos=True, parent=parent, without=without))
        if draw.random() < 0.15:
            answer = await asking
            assert answer.ids == synthetic_answer(prompt, tokens, mesh.vocab)
            self.finished += 1
            return
        requests = mesh.router.core.requests
        await mesh.until(
            lambda: asking.done() or any(r.spec.trace == parent for r in requests.values()),
            what=lambda: (asking, mesh.held()),
        )
        until = mesh.moves + draw.choice((0, 5, 20, 60, 120, 250, 500))
        await leave(mesh, asking, lambda: asking.done() or mesh.moves >= until)


async def test_two_hundred_random_aborts_under_load_leave_nothing(synthetic: SyntheticModel) -> None:
    shape = Shape(prefills=2, relays=2, mains=2, blocks=1024, rate_mbit=16.0, rtt_ms=2.0, router=MIXED)
    async with live_mesh(synthetic, shape) as mesh:
        storm = Storm(mesh, 5)
        while mesh.count("router-0", "requests_cancelled_total") < 200:
            await storm.run(50, 32)
        await mesh.settled(within=CLEAN_WITHIN)
        assert storm.finished >= 20
        for pipeline in Pipeline:
            assert mesh.count("router-0", f"pipeline_{pipeline}_total") >= 3, pipeline
