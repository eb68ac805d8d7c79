"""The case `overload-live`: whether what `overload` decides in virtual time holds over real sockets and HTTP.

All nodes in this process, a synthetic engine that is slow enough for the processor not to be what is full.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.command import say
from benchmarks.mesh.figures import quantile
from benchmarks.mesh.handoff_live import quiet
from benchmarks.mesh.options import Options
from benchmarks.report import Result, bounded
from shared.runtime.service import run_loop, settle_memory
from tests.support.live_client import Refused
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_shape import Shape
from tests.support.small_tokenizer import small_tokenizer

SHAPE = Shape(
    blocks=512,
    rate_mbit=40.0,
    rtt_ms=20.0,
    synthetic={"step_ms": 20.0, "prefill_tokens_per_second": 1500.0},
    worker={"max_running": 8},
    router={"md_local_tokens": 16, "md_local_busy": 1.0},
)
PROMPT, OUTPUT = 200, 30
OFFERS = (0.5, 1.0, 4.0)
CLIENTS = 16
PROMISE = 8.0
"""Seconds that a whole answer may take."""


@dataclass(frozen=True, slots=True)
class Told:
    """One request: seconds until its end, whether it was answered, the Retry-After of a refusal."""

    took: float
    answered: bool
    retry_after: float


def case(options: Options) -> list[Result]:
    """Each offer once: what is measured is whether it holds, not how much."""
    quiet()
    seconds = float(options.pick(4, 12, 40))
    found: dict[float, list[Told]] = {}

    async def story(directory: Path) -> int:
        model = SyntheticModel(small_tokenizer(directory / "model"))
        async with live_mesh(model, SHAPE) as mesh:
            settle_memory()  # as each of its services would, in a process of its own
            capacity = await _capacity(mesh, seconds / 2)
            say(f"overload-live: {capacity:.1f} requests/s in a closed loop")
            for load in OFFERS:
                found[load] = await _offer(mesh, capacity * load, seconds)
                await mesh.until(mesh.idle, within=60.0, what=mesh.held)
                say(_line(load, found[load], seconds))
            mesh.check()
        return 0

    with tempfile.TemporaryDirectory() as directory:
        run_loop(story(Path(directory)))
    return _results(found, seconds)


async def _capacity(mesh: LiveMesh, seconds: float) -> float:
    """Requests/s of clients that each ask again at once."""
    draw = random.Random(0)
    ended = 0
    until = time.monotonic() + seconds

    async def client() -> None:
        nonlocal ended
        while time.monotonic() < until:
            told = await _ask(mesh, draw)
            ended += told.answered
            if not told.answered:
                await asyncio.sleep(min(0.5, told.retry_after))

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    return ended / seconds


async def _offer(mesh: LiveMesh, rate: float, seconds: float) -> list[Told]:
    """Arrivals that wait for nobody."""
    draw = random.Random(rate)
    at, begun, tasks = 0.0, time.monotonic(), list[asyncio.Task[Told]]()
    while (at := at + draw.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
        tasks.append(asyncio.create_task(_ask(mesh, draw)))
    return list(await asyncio.gather(*tasks))


async def _ask(mesh: LiveMesh, draw: random.Random) -> Told:
    prompt = [draw.randrange(3, 250) for _ in range(PROMPT)]
    began = time.monotonic()
    try:
        await mesh.client.complete(prompt, OUTPUT, ignore_eos=True)
    except Refused as refused:
        after = float(refused.headers.get("retry-after", 0.0))
        return Told(time.monotonic() - began, answered=False, retry_after=after)
    except httpx.HTTPError:
        return Told(time.monotonic() - began, answered=False, retry_after=0.0)
    return Told(time.monotonic() - began, answered=True, retry_after=0.0)


def _good(told: Sequence[Told], seconds: float) -> float:
    return sum(each.answered and each.took <= PROMISE for each in told) / seconds


def _refusals(told: Sequence[Told]) -> list[float]:
    return [1e3 * each.took for each in told if not each.answered]


def _line(load: float, told: Sequence[Told], seconds: float) -> str:
    sent = _refusals(told)
    slow = f", p99 {quantile(sent, 0.99):.0f} ms" if sent else ""
    good = f"{_good(told, seconds):.2f} good answers/s"
    return f"overload-live {load} x: {good}, {len(sent)} of {len(told)} refused{slow}"


def _results(found: dict[float, list[Told]], seconds: float) -> list[Result]:
    peak = max(_good(told, seconds) for told in found.values())
    last = found[OFFERS[-1]]
    sent = [each for each in last if not each.answered]
    goods = [round(_good(told, seconds), 2) for told in found.values()]
    ratio = _good(last, seconds) / max(1e-9, peak)
    dated = sum(each.retry_after >= 1 for each in sent) / max(1, len(sent))
    return [
        bounded("overload-live goodput at 4 x / the peak", [ratio], "part", 0.9, most=False, goodput=goods),
        bounded("overload-live refusals p99", [quantile(_refusals(last), 0.99)], "ms", 50.0, most=True),
        bounded("overload-live refusals with Retry-After", [dated], "part", 1.0, most=False),
    ]
