"""Everything at once: workers die, drain and return, lines break, caches are flushed, clients leave.
Every answer that a client waits for is the right one, and nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Sequence

import pytest

from tests.support.live_client import Answer
from tests.support.live_judge import Judge, synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SharedModel, SyntheticModel
from tests.support.live_roads import MIXED
from tests.support.live_shape import Shape
from tests.support.tiny_case import Case

POLICY = {**MIXED, "max_losses": 1000, "max_failures": 1000, "queue_wait": 60.0}
LINK = {
    "ping_every": 0.1,
    "suspect_after": 0.4,
    "lease": 3.0,
    "reconnect_first": 0.02,
    "reconnect_most": 0.1,
}
KINDS = ("kill", "kill", "drain", "wan cut", "wan reset", "lan cut", "lan reset", "flush")
WORKERS = ("prefill-0", "prefill-1", "relay-0", "relay-1", "main-0", "main-1")
SEEDS = int(os.environ.get("PDD_WEATHER_SEEDS", "1"))
"""Runs of twelve faults each; more for a long soak by hand."""


Check = Callable[[Sequence[int], int, Answer], None]


class Weather:
    """Faults one after another, at random events, while clients keep asking."""

    def __init__(self, mesh: LiveMesh, seed: int, check: Check) -> None:
        self._mesh = mesh
        self._check = check
        self._draw = random.Random(seed)
        self._stems = [[self._draw.randrange(3, 250) for _ in range(300)] for _ in range(4)]
        self._over = False
        self.log: list[str] = []
        self.answers = 0

    async def run(self, clients: int, events: int) -> None:
        asking = [asyncio.create_task(self._client()) for _ in range(clients)]
        try:
            for _ in range(events):
                await self._moves(self._draw.randrange(50, 600))
                await self._event()
            self._over = True
            done, left = await asyncio.wait(asking, timeout=40)
            for task in done:
                await task
            assert not left, f"{len(left)} answers do not come: {self.log}, {self._mesh.held()}"
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _moves(self, count: int) -> None:
        until = self._mesh.moves + count
        await self._mesh.until(lambda: self._mesh.moves >= until, within=30)

    async def _event(self) -> None:
        name = self._draw.choice(WORKERS)
        what = self._draw.choice(
            ("kill", "kill", "drain", "wan cut", "wan reset", "lan cut", "lan reset", "flush")
        )
        self.log.append(f"{what} {name}")
        mesh = self._mesh
        if what == "flush":
            mesh.router.flush()
            return
        if what in ("kill", "drain"):
            await (mesh.kill(name) if what == "kill" else mesh.stop(name, drain=True))
            await mesh.start(name)
        else:
            line = mesh.wan if what.startswith("wan") else mesh.lan
            line.cut(silent=what.endswith("cut"))
            if self._draw.random() < 0.5:
                await mesh.until(lambda: not mesh.ready())
            line.heal()
        await mesh.until_ready()

    async def _client(self) -> None:
        while not self._over:
            await self._ask()

    async def _ask(self) -> None:
        draw, mesh = self._draw, self._mesh
        stem = draw.choice(self._stems)
        prompt = stem[: draw.randrange(1, 300)] + [
            draw.randrange(3, 250) for _ in range(draw.randrange(0, 9))
        ]
        tokens = draw.choice((1, 2, 10, 40, 90))
        without = draw.choice(("", "", "", "relay"))
        way = draw.choice((mesh.client.complete, mesh.client.streamed))
        asking = asyncio.create_task(way(prompt, tokens, ignore_eos=True, without=without))
        if draw.random() < 0.2:
            until = mesh.moves + draw.randrange(300)
            try:
                await mesh.until(lambda: asking.done() or mesh.moves >= until, within=30)
            finally:
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
            return
        answer = await asking
        assert answer.error is None, (answer, self.log)
        self._check(prompt, tokens, answer)
        self.answers += 1


def shape_of(blocks: int) -> Shape:
    return Shape(
        prefills=2,
        relays=2,
        mains=2,
        blocks=blocks,
        rate_mbit=12.0,
        rtt_ms=2.0,
        router=POLICY,
        lan=True,
        link=LINK,
        worker={"max_chunk_tokens": 64, "align_most": 5.0},
    )


@pytest.mark.timeout(150)
@pytest.mark.parametrize("blocks", [1024, 170], ids=["roomy", "tight"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_all_at_once(seed: int, blocks: int, synthetic: SyntheticModel) -> None:
    """Tight: a pool holds one or two requests, so that some wait, some are parked or given up."""
    async with live_mesh(synthetic, shape_of(blocks)) as mesh:

        def check(prompt: Sequence[int], tokens: int, answer: Answer) -> None:
            assert answer.ids == synthetic_answer(prompt, tokens, mesh.vocab), (answer, weather.log)

        weather = Weather(mesh, seed, check)
        await weather.run(8, 12)
        assert weather.answers >= 12


@pytest.mark.timeout(150)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_model_in_all_that_weather(seed: int, tiny: Case, tiny_shared: SharedModel) -> None:
    """I7 with real blocks: what a fault leaves in a pool's memory changes no draw."""
    judge = Judge(tiny.reference)
    async with live_mesh(tiny_shared, shape_of(256)) as mesh:
        weather = Weather(
            mesh, seed, lambda prompt, tokens, answer: judge.take(prompt, answer, tokens, ignore_eos=True)
        )
        await weather.run(6, 8)
        assert weather.answers >= 6
    judge.verdict()
