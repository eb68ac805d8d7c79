"""Some seams over real sockets: all nodes in this process, the line by the proxy."""

from __future__ import annotations

import asyncio
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from benchmarks.command import say
from benchmarks.mesh.options import Options
from benchmarks.report import Result, bounded
from shared.runtime.service import run_loop
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.small_tokenizer import small_tokenizer

STEP_MS = 10.0
TOKENS_PER_SECOND = 20_000.0
_PROMPT = 320
_BLOCK = 16
_BLOCK_BYTES = 16_384
_TOKENS = 150
_SHARED = 0.015
"""Seconds that three workers, a router and a client take from one another here: they share one thread."""


def sockets(options: Options) -> list[Result]:
    """P50 and P99 of the wait at the seam by mode and round trip."""
    quiet()
    found = []
    trips = (40.0,) if options.quick else (1.0, 40.0, 150.0)
    requests = options.pick(2, 8, 20)
    for mode in ("one_shot", "catch_up"):
        for rtt_ms in trips:
            relayed = _run(mode, rtt_ms, requests)
            without = _run("P-MD", rtt_ms, max(1, requests // 4))
            allowed = rtt_ms / 1e3 + 2 * STEP_MS / 1e3 + _SHARED
            if mode == "one_shot":
                allowed += 128 / TOKENS_PER_SECOND
            waits = sorted(relayed)
            p50, p99 = statistics.median(waits), waits[int(0.99 * len(waits))]
            say(f"handoff {mode} over sockets, RTT {rtt_ms:g} ms: P50 {p50:.3f} s, P99 {p99:.3f} s")
            more: dict[str, Any] = {"p99_s": round(p99, 4), "seams": len(waits)}
            name = f"handoff {mode.replace('_', '-')} over sockets, RTT {rtt_ms:g} ms"
            baseline = [statistics.median(without)] * len(waits)
            found.append(bounded(name, waits, "s", allowed, most=True, baselines=baseline, **more))
    return found


def quiet() -> None:
    """The nodes' logs are not what is looked for here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def _run(road: str, rtt_ms: float, requests: int) -> list[float]:
    waits: list[float] = []

    async def story(directory: Path) -> int:
        model = SyntheticModel(small_tokenizer(directory / "model"), _BLOCK)
        blocks = _PROMPT // _BLOCK
        shape = Shape(
            rate_mbit=blocks * _BLOCK_BYTES * 8 / 1e6 / 1.0,  # a second of the line: some 80 ids by the relay
            rtt_ms=rtt_ms,
            router=ROADS[road][1],
            synthetic={
                "block_bytes": _BLOCK_BYTES,
                "step_ms": STEP_MS,
                "prefill_tokens_per_second": TOKENS_PER_SECOND,
            },
        )
        async with live_mesh(model, shape) as mesh:
            for number in range(requests):
                waits.append(await _seam(mesh, number))
                await mesh.settled()
        return 0

    with tempfile.TemporaryDirectory() as directory:
        run_loop(story(Path(directory)))
    return waits


async def _seam(mesh: LiveMesh, number: int) -> float:
    """Seconds between the last id that another one drew and main decode's first, at the client."""
    prompt = [3 + number, *(4 + at % 200 for at in range(_PROMPT - 1))]
    async with mesh.client.stream(prompt, _TOKENS, ignore_eos=True) as stream:
        before, told = time.monotonic(), 0
        while await stream.step():
            now = time.monotonic()
            if len(stream.answer.ids) > told:
                told = len(stream.answer.ids)
                if stream.answer.pdd.get("owner") == "main_decode":
                    await stream.rest()
                    return now - before
                before = now
    await asyncio.sleep(0)
    raise AssertionError(f"main decode has drawn nothing: {stream.answer}")
