"""How soon nothing is left of a request whose client has gone, by how far it was: over real sockets, all
nodes in this process, the line by the proxy.

Time runs from the close of the client's connection until no node holds a request, a ticket, a transfer, a pin
or a promise, and the router's index is again what is cached. Beside it: how long the same request would have
gone on.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.command import say
from benchmarks.mesh.handoff_live import quiet
from benchmarks.mesh.options import Options
from benchmarks.report import Result, bounded
from services.router.lifecycle import Request
from shared.runtime.service import run_loop
from tests.support.live_client import Answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_moments import MOMENTS
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.small_tokenizer import small_tokenizer

STEP_MS = 5.0
RTT_MS = 40.0
GRACE_MS = 50.0
_PROMPT = 240
Moment = Callable[[LiveMesh, Request], bool]


def case(options: Options) -> list[Result]:
    """Every state of every road."""
    quiet()
    aborts = options.pick(2, 12, 40)
    allowed = STEP_MS + RTT_MS + GRACE_MS
    found: list[Result] = []

    async def story(directory: Path) -> int:
        model = SyntheticModel(small_tokenizer(directory / "model"))
        for road, moments in MOMENTS.items():
            async with live_mesh(model, _shape(road)) as mesh:
                for number, moment in enumerate(moments):
                    whole = await _whole(mesh, road, moment)
                    took = sorted([1e3 * await _left(mesh, road, moment) for _ in range(aborts)])
                    p99 = took[int(0.99 * len(took))]
                    name = f"abort {road}, {moment.__name__}"
                    say(f"{name}: P50 {statistics.median(took):.0f} ms, P99 {p99:.0f} ms")
                    more = {"p50_ms": round(statistics.median(took), 1), "aborts": len(took), "state": number}
                    found.append(
                        bounded(name, [p99], "ms", allowed, most=True, baselines=[1e3 * whole], **more)
                    )
        return 0

    with tempfile.TemporaryDirectory() as directory:
        run_loop(story(Path(directory)))
    return found


def _shape(road: str) -> Shape:
    return Shape(
        rate_mbit=4.0,
        rtt_ms=RTT_MS,
        router=ROADS[road][1],
        synthetic={"step_ms": STEP_MS, "prefill_tokens_per_second": 4000.0},
        worker={"max_chunk_tokens": 64},
    )


async def _ask(mesh: LiveMesh, road: str, moment: Moment) -> asyncio.Task[Answer]:
    """A request that has come as far as that."""
    await mesh.flush()
    tokens = 20 if road == "singular" else 300
    asking = asyncio.create_task(mesh.client.streamed(range(3, 3 + _PROMPT), tokens, ignore_eos=True))
    requests = mesh.router.core.requests
    await mesh.until(lambda: any(moment(mesh, r) for r in requests.values()), what=mesh.held)
    return asking


async def _left(mesh: LiveMesh, road: str, moment: Moment) -> float:
    """Seconds from a disconnect until nothing is left."""
    asking = await _ask(mesh, road, moment)
    began = time.monotonic()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await mesh.until(mesh.idle, what=mesh.held)
    took = time.monotonic() - began
    mesh.check()
    return took


async def _whole(mesh: LiveMesh, road: str, moment: Moment) -> float:
    """Seconds until nothing is left of one whose client stays."""
    asking = await _ask(mesh, road, moment)
    began = time.monotonic()
    await asking
    await mesh.until(mesh.idle, what=mesh.held)
    return time.monotonic() - began
