"""What crosses the line: only blocks that main decode lacks, each of them once; and what a hit saves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.live_client import Answer
from tests.support.live_judge import crowd, synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape

BLOCK = 32
BYTES = 32768
SHAPE: dict[str, Any] = {
    "blocks": 512,
    "rate_mbit": 60.0,
    "rtt_ms": 2.0,
    "synthetic": {"block_bytes": BYTES, "step_ms": 1.0},
}


@pytest.fixture
def coarse(synthetic: SyntheticModel) -> SyntheticModel:
    """Blocks so large that control messages are small beside them."""
    return SyntheticModel(synthetic.directory, BLOCK)


def prompt_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 300) for _ in range(length)]


async def ask(mesh: LiveMesh, prompt: list[int], tokens: int) -> Answer:
    """One checked answer, once all that it moves has come to rest."""
    answer = await mesh.client.complete(prompt, tokens, ignore_eos=True)
    assert answer.ids == synthetic_answer(prompt, tokens, mesh.vocab)
    await mesh.settled()
    return answer


def about(sent: int, blocks: int) -> bool:
    """Whether so many bytes are so many blocks, within 10%."""
    return abs(sent - blocks * BYTES) <= 0.1 * blocks * BYTES


@pytest.mark.parametrize("road", ["P-MD", "one_shot", "catch_up"])
async def test_the_second_turn_sends_only_missing_blocks(road: str, coarse: SyntheticModel) -> None:
    async with live_mesh(coarse, Shape(router=ROADS[road][1], **SHAPE)) as mesh:
        first = prompt_of(12 * BLOCK + 5)
        answer = await ask(mesh, first, 70)
        assert answer.cached == 0
        assert about(mesh.sent, 12)
        held = (len(first) + 70 - 1) // BLOCK  # the id drawn last has no KV
        second = first + answer.ids + prompt_of(8 * BLOCK, 2)
        before = mesh.sent
        follow = await ask(mesh, second, 40)
        assert follow.cached == follow.pdd["md_hit_tokens"] == held * BLOCK
        missing = len(second) // BLOCK - held
        assert about(mesh.sent - before, missing)
        assert follow.pdd["kv_bytes_asked"] == missing * BYTES
        assert follow.pdd["kv_bytes_full"] == len(second) // BLOCK * BYTES
        assert 0 < follow.pdd["handoff_bytes"] < BYTES // 8


async def test_a_short_turn_is_extended_by_main_decode_alone(coarse: SyntheticModel) -> None:
    async with live_mesh(coarse, Shape(router={"relay_margin": 0.0}, **SHAPE)) as mesh:
        first = prompt_of(12 * BLOCK + 5)
        answer = await ask(mesh, first, 70)
        prefills, before = mesh.count("prefill-0", "prefills_total"), mesh.sent
        follow = await ask(mesh, first + answer.ids + prompt_of(100, 2), 20)
        assert follow.pipeline == "MD"
        assert follow.cached == (len(first) + 70 - 1) // BLOCK * BLOCK
        assert follow.owners == {"main_decode": 20}
        assert mesh.count("prefill-0", "prefills_total") == prefills == 1
        assert mesh.sent - before < BYTES // 8


@pytest.mark.parametrize("road", ["MD", "P-MD", "one_shot", "catch_up"])
@pytest.mark.parametrize("rest", [0, 5])
async def test_a_full_hit_sends_no_kv(road: str, rest: int, coarse: SyntheticModel) -> None:
    """Whole blocks alone are extended by main decode on every road: it lacks nothing."""
    shape = Shape(router={"relay": True, **ROADS[road][1]}, **SHAPE)
    async with live_mesh(coarse, shape) as mesh:
        prompt = prompt_of(8 * BLOCK + rest)
        await ask(mesh, prompt, 10)
        prefills, before = mesh.count("prefill-0", "prefills_total"), mesh.sent
        answer = await ask(mesh, prompt, 10)
        assert answer.cached == 8 * BLOCK
        assert mesh.sent - before < BYTES // 8
        alone = answer.pipeline == "MD"
        assert alone or rest
        assert (mesh.count("prefill-0", "prefills_total") == prefills) == alone


@pytest.mark.parametrize("road", ["P-MD", "one_shot", "catch_up"])
async def test_eight_equal_prompts_cross_the_line_once(road: str, coarse: SyntheticModel) -> None:
    async with live_mesh(coarse, Shape(router=ROADS[road][1], **SHAPE)) as mesh:
        prompt = prompt_of(20 * BLOCK + 3)
        answers = await crowd(*(mesh.client.complete(prompt, 8, ignore_eos=True) for _ in range(8)))
        expected = synthetic_answer(prompt, 8, mesh.vocab)
        assert [answer.ids for answer in answers] == [expected] * 8
        await mesh.settled()
        assert 20 * BYTES <= mesh.sent <= 1.1 * 20 * BYTES


@pytest.mark.parametrize("road", ["P-MD", "one_shot", "MD"])
@pytest.mark.parametrize("emptied", [(), ("main-0",), ("prefill-0",), ("main-0", "prefill-0")])
async def test_wherever_a_prompt_is_cached(
    road: str, emptied: tuple[str, ...], coarse: SyntheticModel
) -> None:
    """At P, at main decode, at both, at neither: the answer is the same and only what lacks is sent."""
    router = {**ROADS[road][1], "md_local_tokens": 64 if road == "MD" else 0}
    async with live_mesh(coarse, Shape(router=router, **SHAPE)) as mesh:
        prompt = prompt_of(9 * BLOCK)
        await ask(mesh, prompt, 6)
        if emptied:
            await mesh.flush(*emptied)
        before = mesh.sent
        answer = await ask(mesh, prompt, 6)
        if "main-0" in emptied:
            assert about(mesh.sent - before, 9)
        else:
            assert mesh.sent - before < BYTES // 8
            assert answer.cached == 9 * BLOCK
