"""In bfloat16 a mesh of compiled engines says exactly what one engine says alone, on every road: what a
hand-off computes again is, to the last bit, what was computed and sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.engine.api import SamplingParams
from shared.engine.cpu_model import load_model
from shared.engine.fingerprint import fingerprint
from shared.engine.runner import TorchRunner
from tests.support.compiled import compiled
from tests.support.live_judge import crowd
from tests.support.live_mesh import live_mesh
from tests.support.live_models import SharedModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.stepper import Row, finish
from tests.support.tiny_case import BLOCK_TOKENS, Case

TEXTS = ("The lamp burns every night until morning comes. " * 3, "merge the sorted lists " * 5)
SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"temperature": 1.0, "seed": 17})


@pytest.fixture(scope="module")
def shared(tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> SharedModel:
    model = load_model(tiny.directory, "bfloat16", library=compiled())
    cache = Path(tmp_path_factory.mktemp("cache")) / "digests.json"
    return SharedModel(tiny.directory, model, fingerprint(tiny.directory, cache=cache), BLOCK_TOKENS)


@pytest.mark.parametrize("road", ROADS)
async def test_every_road_says_the_same(road: str, tiny: Case, shared: SharedModel) -> None:
    pipeline, router = ROADS[road]
    tokens = {"singular": 5, "MD": 12, "P-MD": 12}.get(road, 24)
    shape = Shape(blocks=192, rate_mbit=0.5 if road == "singular" else 3.0, rtt_ms=4.0, router=router)
    async with live_mesh(shared, shape) as mesh:
        asks = [(text, fields) for text in TEXTS for fields in SAMPLINGS]
        answers = await crowd(
            *(mesh.client.streamed(text, tokens, ignore_eos=True, **fields) for text, fields in asks)
        )
    assert [answer for answer in answers if answer.pipeline == pipeline]
    alone = TorchRunner(
        tiny.directory, dtype="bfloat16", kv_blocks=192, block_tokens=BLOCK_TOKENS, library=compiled()
    )
    for seq, ((_, fields), answer) in enumerate(zip(asks, answers, strict=True)):
        params = SamplingParams(**{"max_pos": 1 << 20, "seed": 0} | fields)
        row = Row(seq, list(answer.prompt), range(192), params)
        assert finish(alone, [row], len(answer.ids)) == [list(answer.ids)]
