"""The development model over real sockets: every road, greedy and seeded, several requests at once (I7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.engine.cpu_model import load_model
from shared.engine.fingerprint import fingerprint
from shared.engine.loading import compiled
from tests.support.live_judge import Judge, crowd
from tests.support.live_mesh import live_mesh
from tests.support.live_models import SharedModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.reference import Reference

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

BLOCK = 32
STORY = (
    "The old lighthouse keeper climbed the stairs every evening and lit the lamp. On the night of the great "
    "storm, however, the oil had run out, and nobody on the island had seen the supply boat for weeks. "
)
CODE = "def merge(left, right):\n    # Two sorted lists become one sorted list.\n"
TEXTS = (3 * STORY, 2 * CODE)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True},
    {"temperature": 1.0, "seed": 17, "top_p": 0.9, "top_k": 40, "ignore_eos": True},
)
SLOW: dict[str, Any] = {
    "line": {"chunk_ms": 40.0},
    "link": {"suspect_after": 20.0, "handshake_timeout": 20.0},
}
"""A machine on which a step may take long."""


@pytest.fixture(scope="module")
def reference(model_directory: Path) -> Reference:
    return Reference.load(model_directory)


@pytest.fixture(scope="module")
def shared(model_directory: Path) -> SharedModel:
    model = load_model(model_directory, "float32", library=compiled(print))  # as a worker loads it
    return SharedModel(model_directory, model, fingerprint(model_directory), BLOCK)


@pytest.mark.parametrize("road", ROADS)
async def test_every_road(road: str, reference: Reference, shared: SharedModel) -> None:
    """A second turn follows the first: its prompt is cached in part at main decode and at P."""
    pipeline, router = ROADS[road]
    tokens = {"singular": 5, "MD": 12, "P-MD": 12}.get(road, 24)
    judge = Judge(reference)
    shape = Shape(blocks=96, rate_mbit=30.0, rtt_ms=4.0, router=router, **SLOW)
    async with live_mesh(shared, shape) as mesh:
        asks = [(text, fields) for text in TEXTS for fields in SAMPLINGS]
        first = await crowd(*(mesh.client.streamed(text, tokens, **fields) for text, fields in asks))
        follow = [*first[0].prompt, *first[0].ids, *first[1].prompt[:20]]
        second = await mesh.client.complete(follow, tokens, **SAMPLINGS[1])
    for (_, fields), answer in zip(asks, first, strict=True):
        judge.take(answer.prompt, answer, tokens, **fields)
    judge.take(follow, second, tokens, **SAMPLINGS[1])
    judge.verdict()
    taken = [answer for answer in first if answer.pipeline == pipeline]
    assert taken
    if pipeline == "P-RLD-MD":
        assert any(set(answer.owners) == {"prefill", "relay", "main_decode"} for answer in taken)
    assert second.cached or road == "singular"
