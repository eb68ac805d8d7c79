"""One request on every road, on uvloop and on asyncio's own loop."""

from __future__ import annotations

import pytest

from tests.support.live_judge import synthetic_answer
from tests.support.live_mesh import live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape


@pytest.mark.parametrize("road", ROADS)
async def test_every_road(road: str, synthetic: SyntheticModel) -> None:
    pipeline, router = ROADS[road]
    prompt, tokens = [*range(3, 103)], 5 if road == "singular" else 30
    shape = Shape(rate_mbit=2.0, rtt_ms=2.0, router=router)
    async with live_mesh(synthetic, shape) as mesh:
        answer = await mesh.client.streamed(prompt, tokens, ignore_eos=True)
        assert answer.ids == synthetic_answer(prompt, tokens, mesh.vocab)
        assert answer.pipeline == pipeline
