"""Workers that die, come back, drain, or join while requests run: every answer is the right one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from services.router.lifecycle import Request
from tests.support.live_client import Answer
from tests.support.live_judge import crowd, synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape

QUICK = {
    "ping_every": 0.1,
    "suspect_after": 0.4,
    "lease": 2.0,
    "reconnect_first": 0.02,
    "reconnect_most": 0.1,
}
SLOW = {"step_ms": 4.0, "prefill_tokens_per_second": 4000.0}
LONG = 60


def shape_of(road: str, **more: Any) -> Shape:
    given: dict[str, Any] = {
        "blocks": 1024,
        "rate_mbit": 8.0,
        "rtt_ms": 2.0,
        "router": ROADS[road][1],
        "link": QUICK,
        "synthetic": SLOW,
        "worker": {"max_chunk_tokens": 64},
        **more,
    }
    return Shape(**given)


def prompt_of(number: int, length: int = 160) -> list[int]:
    return [3 + number, *range(4, 3 + length)]


class Crowd:
    """Requests that run while something happens to a worker."""

    def __init__(self, mesh: LiveMesh, count: int, tokens: int = LONG) -> None:
        self._mesh = mesh
        self._tokens = tokens
        self._prompts = [prompt_of(number) for number in range(count)]
        self._asking = [
            asyncio.create_task(mesh.client.streamed(prompt, tokens, ignore_eos=True))
            for prompt in self._prompts
        ]

    async def until(self, holds: Callable[[Request], bool]) -> None:
        """Until it holds for one of them."""
        requests = self._mesh.router.core.requests
        await self._mesh.until(lambda: any(map(holds, requests.values())), what=self._mesh.held)

    async def answers(self) -> list[Answer]:
        """All of them, each checked."""
        answers = await asyncio.gather(*self._asking)
        for prompt, answer in zip(self._prompts, answers, strict=True):
            assert answer.error is None, answer
            assert answer.ids == synthetic_answer(prompt, self._tokens, self._mesh.vocab), answer.pdd
        return answers


def on(node: str) -> Callable[[Request], bool]:
    """A request has its part at a node, and is under way there."""

    def holds(r: Request) -> bool:
        legs = r.on(node)
        drawing = r.owner is not None and r.owner.node == node and r.made > 4
        sending = any(leg is r.prefill for leg in legs)
        return drawing or sending

    return holds


MOMENTS: dict[str, Callable[[Request], bool]] = {
    "P-MD prefill-0": lambda r: r.prefill is not None and r.made == 0,
    "P-MD prefill-0 drawn": lambda r: r.prefill is not None and r.made == 1 and r.main is not r.owner,
    "P-MD main-0": lambda r: r.owner is not None and r.owner is r.main and r.made > 9,
    "P-MD main-0 filling": lambda r: r.made == 1,
    "one_shot prefill-0": lambda r: r.owner is not None and r.owner is r.relay,
    "one_shot relay-0": lambda r: r.owner is not None and r.owner is r.relay and r.made > 3,
    "one_shot main-0": lambda r: r.owner is not None and r.owner is r.relay and r.made > 3,
    "catch_up relay-0": lambda r: r.round_open,
    "catch_up main-0": lambda r: r.round_open,
    "MD main-0": lambda r: r.made > 9,
}


@pytest.mark.parametrize("case", MOMENTS)
async def test_a_worker_dies_and_comes_back(case: str, synthetic: SyntheticModel) -> None:
    """The only one of its role, on the same port, with nothing it held: the requests go on with it."""
    road, node, *_ = case.split()
    async with live_mesh(synthetic, shape_of(road)) as mesh:
        crowd_ = Crowd(mesh, 3)
        await crowd_.until(MOMENTS[case])
        await mesh.kill(node)
        await mesh.start(node)
        await crowd_.answers()
        await mesh.until_ready()
        assert mesh.count("router-0", "workers_lost_total") == 1


@pytest.mark.parametrize("case", [case for case in MOMENTS if "drawn" not in case])
async def test_one_of_two_dies(case: str, synthetic: SyntheticModel) -> None:
    """Nobody comes back: the other one does the rest."""
    road, node, *_ = case.split()
    async with live_mesh(synthetic, shape_of(road, prefills=2, relays=2, mains=2)) as mesh:
        crowd_ = Crowd(mesh, 4)
        await crowd_.until(lambda r: MOMENTS[case](r) and bool(r.on(node)))
        await mesh.kill(node)
        await crowd_.answers()


@pytest.mark.parametrize(
    ("road", "node"),
    [
        (road, node)
        for road in ("P-MD", "one_shot", "catch_up")
        for node in ("prefill-0", "relay-0", "main-0")
        if (road, node) != ("P-MD", "relay-0")  # no relay takes part
    ],
)
async def test_a_drain_moves_or_ends_what_runs(road: str, node: str, synthetic: SyntheticModel) -> None:
    """SIGTERM: no stream breaks, the worker leaves empty, the rest of the mesh goes on."""
    async with live_mesh(synthetic, shape_of(road, prefills=2, relays=2, mains=2)) as mesh:
        crowd_ = Crowd(mesh, 4)
        await crowd_.until(on(node))
        worker = mesh[node].worker
        async with asyncio.timeout(15):
            await mesh.stop(node, drain=True)
        assert worker.counters.get("failed_internal_total", 0) == 0
        answers = await crowd_.answers()
        assert all(answer.done for answer in answers)
        again = await mesh.client.complete(prompt_of(9), 12, ignore_eos=True)
        assert again.ids == synthetic_answer(prompt_of(9), 12, mesh.vocab)
        assert node not in again.pdd["nodes"].values()


async def test_a_router_that_drains_serves_its_streams_to_the_end(synthetic: SyntheticModel) -> None:
    async with live_mesh(synthetic, shape_of("one_shot")) as mesh:
        crowd_ = Crowd(mesh, 3)
        await crowd_.until(lambda r: r.made > 3)
        draining = asyncio.create_task(mesh.router.drain())
        await mesh.until(lambda: bool(mesh.router.core.ready()["reasons"]))
        refused = await mesh.client.http.post("/v1/completions", json={"prompt": [5], "max_tokens": 1})
        assert refused.status_code == 503
        await crowd_.answers()
        await draining


async def test_a_router_that_dies_and_comes_back(synthetic: SyntheticModel) -> None:
    """Its clients see their connections break; workers drop its requests at once and keep their caches."""
    async with live_mesh(synthetic, shape_of("one_shot")) as mesh:
        prompt = prompt_of(0)
        asking = asyncio.create_task(mesh.client.streamed(prompt, 200, ignore_eos=True))
        requests = mesh.router.core.requests
        await mesh.until(lambda: any(r.owner is not None and r.owner is r.main for r in requests.values()))
        await mesh.kill("router-0")
        with pytest.raises(httpx.HTTPError):
            await asking
        await mesh.start("router-0")
        await mesh.until_ready()
        await mesh.settled(within=2)
        again = await mesh.client.complete(prompt, 12, ignore_eos=True)
        assert again.ids == synthetic_answer(prompt, 12, mesh.vocab)
        assert again.cached == len(prompt) // 4 * 4


LATE = ("main-1", "relay-1", "prefill-1")


async def test_workers_that_join_later_serve(synthetic: SyntheticModel) -> None:
    """Nobody was configured with them: they are introduced, dialled, used, and the first may leave."""
    shape = shape_of("one_shot", prefills=2, relays=2, mains=2, late=LATE)
    async with live_mesh(synthetic, shape) as mesh:
        crowd_ = Crowd(mesh, 3)
        await crowd_.until(lambda r: r.made > 3)
        for name in LATE:
            await mesh.start(name)
        await mesh.until_ready()
        for name in ("main-0", "relay-0", "prefill-0"):
            await mesh.stop(name, drain=True)
        await crowd_.answers()
        answers = await crowd(
            *(mesh.client.complete(prompt_of(20 + at), 60, ignore_eos=True) for at in range(4))
        )
        for at, answer in enumerate(answers):
            assert answer.ids == synthetic_answer(prompt_of(20 + at), 60, mesh.vocab)
            assert answer.pipeline == "P-RLD-MD"
            assert set(answer.pdd["nodes"].values()) <= set(LATE)
