"""KV that is compressed on the line: the answers are those of the reference, also where the line breaks."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.support.live_judge import Judge
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SharedModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.tiny_case import Case

QUICK = {"ping_every": 0.1, "suspect_after": 0.4, "reconnect_first": 0.02, "reconnect_most": 0.1}


def shape_of(road: str) -> Shape:
    return Shape(rate_mbit=4.0, rtt_ms=2.0, compress="on", router=ROADS[road][1], link=QUICK)


def encoded(mesh: LiveMesh) -> tuple[float, float]:
    """Bytes of chunks that prefill compressed, before and after."""
    numbers = mesh["prefill-0"].numbers()
    before, after = (
        numbers.get(f"transport_encoded_bytes_{when}_total", 0.0) for when in ("before", "after")
    )
    return before, after


@pytest.mark.parametrize("road", ["P-MD", "one_shot"])
async def test_answers_are_the_reference(road: str, tiny: Case, tiny_shared: SharedModel) -> None:
    draw = random.Random(4)
    judge = Judge(tiny.reference)
    async with live_mesh(tiny_shared, shape_of(road)) as mesh:
        for length in (65, 130, 118):
            prompt = [draw.randrange(3, mesh.vocab) for _ in range(length)]
            fields: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "seed": length}
            judge.take(prompt, await mesh.client.streamed(prompt, 12, **fields), 12, **fields)
        before, after = encoded(mesh)
        assert before > after > 0
        assert mesh.count("main-0", "chunks_damaged_total") == 0
    judge.verdict()


async def test_a_cut_in_the_middle(tiny: Case, tiny_shared: SharedModel) -> None:
    draw = random.Random(5)
    judge = Judge(tiny.reference)
    async with live_mesh(tiny_shared, shape_of("P-MD")) as mesh:
        prompt = [draw.randrange(3, mesh.vocab) for _ in range(130)]
        fields: dict[str, Any] = {"ignore_eos": True}
        asking = asyncio.create_task(mesh.client.streamed(prompt, 8, **fields))
        await mesh.until(lambda: mesh.count("main-0", "kv_bytes_in_total") > 0, what=mesh.held)
        mesh.wan.cut(silent=False)
        await mesh.until(lambda: not mesh.ready())
        mesh.wan.heal()
        judge.take(prompt, await asking, 8, **fields)
        await mesh.until_ready()
        await mesh.settled()
        assert encoded(mesh)[0] > 0
    judge.verdict()
