"""SIGTERM on each role with 50 streams running: all finish or move, and none is cut short."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import httpx
import pytest

from shared.runtime.service import run_loop
from tests.chaos.asking import Ask
from tests.chaos.clients import lines
from tests.chaos.knowing import Synthetic
from tests.chaos.scene import ROUTER, Scene
from tests.chaos.stage import Stage, open_stage

STREAMS = 50
TOKENS = 300


async def stream(http: httpx.AsyncClient, ask: Ask, begun: asyncio.Semaphore) -> None:
    """One stream, asked for until it is taken in; `begun` is released with its first id."""
    while not ask.accepted:
        async with http.stream(
            "POST", "/v1/completions", json=ask.body(stream=True), headers={"X-PDD-Trace": "1"}
        ) as response:
            ask.accepted = response.status_code == 200
            async for line in lines(response):
                if line.startswith(b"data: {"):
                    before = len(ask.told)
                    ask.take(json.loads(line[6:]))
                    if ask.told and not before:
                        begun.release()
                ask.done |= line == b"data: [DONE]"


async def fifty(stage: Stage, first: int, node: str, knows: Synthetic) -> None:
    """Streams that have all begun when the node is told to end; each is checked to its last id."""
    asks = [
        Ask([3 + (first + at) % 240, *range(4, 200 + at)], TOKENS, at, 0.0, ignore_eos=True, began=0.0)
        for at in range(STREAMS)
    ]
    begun = asyncio.Semaphore(0)
    async with httpx.AsyncClient(
        base_url=stage.url, timeout=None, trust_env=False, limits=httpx.Limits(max_connections=None)
    ) as http:
        asking = [asyncio.create_task(stream(http, ask, begun)) for ask in asks]
        for _ in asks:
            await begun.acquire()
        running = sum(not ask.done for ask in asks)
        assert await stage.end(node, signal.SIGTERM) == 0
        await asyncio.gather(*asking)
    assert running == STREAMS
    for ask in asks:
        assert ask.done, f"{len(ask.told)} of {TOKENS} ids: {ask.error}"
        assert ask.told == knows.expected(ask), ask.pipeline


@pytest.mark.timeout(300)
def test_none_of_fifty_streams_is_cut_short(tmp_path: Path) -> None:
    async def story() -> int:
        async with open_stage(tmp_path, Scene()) as stage:
            config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
            knows = Synthetic(config["vocab_size"])
            for number, node in enumerate(("relay-0", "main-0", "prefill-0", ROUTER)):
                await fifty(stage, 50 * number, node, knows)
                await stage.start(node)
                assert await stage.until_ready(60.0) is not None
            assert not stage.crashes
        return 0

    assert run_loop(story()) == 0
