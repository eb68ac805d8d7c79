"""I7 over sockets: what a mesh answers is what the reference would, whatever road the request takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.live_client import Answer
from tests.support.live_judge import Judge, crowd
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SharedModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.tiny_case import Case

COMMON = [17, 45, 81, 110, 143, 201, 240, 260, 300]
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 1.0, "seed": 2**63 + 5, "top_k": 8},
    {"temperature": 0.8, "seed": 3, "top_p": 0.7, "ignore_eos": True},
    {"temperature": 1.3, "seed": 4, "min_p": 0.05},
    {"temperature": 1.0, "seed": 5, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "ignore_eos": True},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3, "ignore_eos": True},
    {"temperature": 1.0, "seed": 6, "repetition_penalty": 0.9, "presence_penalty": -0.5},
    {"logit_bias": {"17": 5.0, "45": -100.0, "2": 4.0}, "temperature": 1.0, "seed": 7},
    {"min_tokens": 9, "stop_token_ids": COMMON, "temperature": 1.5, "seed": 8},
    {"logprobs": 3, "temperature": 1.0, "seed": 9, "ignore_eos": True},
    {"logprobs": 0, "ignore_eos": True},
)

CHUNKS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunked": {"token_budget": 12, "max_chunk_tokens": 20},
}


LENGTHS = (1, 3, 4, 5, 63, 64, 65, 90, 101, 112, 118, 130)


async def ask_all(
    mesh: LiveMesh, judge: Judge, prompts: Sequence[list[int]], most: int
) -> list[tuple[list[int], Answer]]:
    """All samplings at once, every other one as a stream: prompts and answers."""
    ways = (mesh.client.complete, mesh.client.streamed)
    asks = []
    for at, (prompt, fields) in enumerate(zip(prompts, SAMPLINGS, strict=True)):
        tokens = most - at % 5
        asks.append((prompt, tokens, {**fields, "min_tokens": min(fields.get("min_tokens", 0), tokens)}))
    answers = await crowd(
        *(ways[at % 2](prompt, tokens, **fields) for at, (prompt, tokens, fields) in enumerate(asks))
    )
    for (prompt, tokens, fields), answer in zip(asks, answers, strict=True):
        judge.take(prompt, answer, tokens, **fields)
    return list(zip(prompts, answers, strict=True))


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("road", ROADS)
async def test_every_road_draws_as_the_reference(
    road: str, chunks: str, tiny: Case, tiny_shared: SharedModel
) -> None:
    """Two turns: the second one's prompts go on where the first one's answers ended."""
    pipeline, router = ROADS[road]
    rate, most = (1.5, 5) if road == "singular" else (4.0, 40)
    shape = Shape(blocks=2048, rate_mbit=rate, rtt_ms=2.0, router=router, worker=CHUNKS[chunks])
    judge = Judge(tiny.reference)
    async with live_mesh(tiny_shared, shape) as mesh:
        first = await ask_all(mesh, judge, [tiny.prompt(length) for length in LENGTHS], most)
        follow = [prompt + answer.ids + tiny.prompt(9) for prompt, answer in first]
        second = await ask_all(mesh, judge, follow, most)
    judge.verdict()
    check_road(road, pipeline, [answer for _, answer in first + second])


def check_road(road: str, pipeline: str, answers: Sequence[Answer]) -> None:
    """The requests took the road that is tested, and some were handed over as it does."""
    taken = [answer for answer in answers if answer.pipeline == pipeline]
    assert len(taken) >= len(answers) // 3, [answer.pipeline for answer in answers]
    handed = [answer for answer in taken if answer.owners.get("relay") and answer.owners.get("main_decode")]
    modes = {answer.pdd["cut"]["mode"] for answer in handed}
    assert road not in ("one_shot", "catch_up") or road in modes
    if road == "singular":
        assert any(set(answer.owners) == {"prefill", "relay"} for answer in taken)
