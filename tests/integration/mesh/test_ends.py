"""How answers begin and end, on every road: lengths around a block, one token, stop ids and stop strings that
come first, late, or on both sides of a cut.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.live_client import Answer
from tests.support.live_judge import Judge, crowd
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SharedModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.tiny_case import BLOCK_TOKENS, Case
from tests.support.tiny_model import EOS_ID

LENGTHS = [1, 2, *(k * BLOCK_TOKENS + rest for k in (1, 2, 9) for rest in (-1, 0, 1))]
MESHES = ["MD", "P-MD", "one_shot", "catch_up"]
SECOND = 22
"""Ids of the answer whose stops are tested."""


def shape_of(road: str, **more: Any) -> Shape:
    return Shape(blocks=2048, rate_mbit=3.0, rtt_ms=2.0, router=ROADS[road][1], **more)


@pytest.mark.parametrize("road", MESHES)
async def test_lengths_around_a_block_cold_warm_and_half_warm(
    road: str, tiny: Case, tiny_shared: SharedModel
) -> None:
    """Nothing cached, everything, P's cache lost, main decode's lost; 1, 2 and 9 ids to make."""
    judge = Judge(tiny.reference)
    async with live_mesh(tiny_shared, shape_of(road)) as mesh:
        prompts = [tiny.prompt(length) for length in LENGTHS]
        for cold in ("all", "none", "prefill-0", "main-0"):
            await mesh.settled()
            if cold in mesh.workers:
                await mesh.flush(cold)
            asks = [(prompt, (1, 2, 9)[at % 3]) for at, prompt in enumerate(prompts)]
            answers = await crowd(
                *(mesh.client.complete(prompt, tokens, ignore_eos=True) for prompt, tokens in asks)
            )
            for (prompt, tokens), answer in zip(asks, answers, strict=True):
                judge.take(prompt, answer, tokens, ignore_eos=True)
    judge.verdict()


@pytest.mark.parametrize("road", MESHES)
async def test_a_stop_id_that_comes_first(road: str, tiny: Case, tiny_shared: SharedModel) -> None:
    """The answer is that id alone, as eos and as the client's own; `min_tokens` keeps it away."""
    judge = Judge(tiny.reference)
    async with live_mesh(tiny_shared, shape_of(road)) as mesh:
        prompt = tiny.prompt(37)
        (first, *_) = tiny.answer(prompt, 1)
        own: dict[str, Any] = {"stop_token_ids": [first]}
        forced: dict[str, Any] = {"logit_bias": {str(EOS_ID): 100.0}}
        later = {**own, "min_tokens": 3}
        answers = await crowd(
            *(mesh.client.complete(prompt, 12, **fields) for fields in (own, forced, later))
        )
        for answer, fields in zip(answers, (own, forced, later), strict=True):
            judge.take(prompt, answer, 12, **fields)
        assert [answer.ids for answer in answers[:2]] == [[first], [EOS_ID]]
        assert [answer.finish for answer in answers[:2]] == ["stop", "stop"]
        assert [answer.text for answer in answers[:2]] == ["", ""]
        assert [answer.stop for answer in answers[:2]] == [first, None]
        assert len(answers[2].ids) >= 3
    judge.verdict()


def readable(tiny: Case) -> dict[str, float]:
    """A bias that leaves only ids of one printable ASCII character each."""
    plain = range(3 + ord("!"), 3 + ord("~") + 1)  # three special ids come before the bytes
    return {str(id_): -100.0 for id_ in range(tiny.model.config.vocab) if id_ not in plain}


async def whole(mesh: LiveMesh, prompt: list[int], bias: dict[str, float]) -> Answer:
    answer = await mesh.client.complete(prompt, SECOND, logit_bias=bias)
    assert len(answer.text) == len(answer.ids) == SECOND
    return answer


@pytest.mark.parametrize("road", MESHES)
async def test_stop_strings_anywhere(road: str, tiny: Case, tiny_shared: SharedModel) -> None:
    """From every position on: one that is found ends the answer before it, one that is nearly found takes
    nothing from it, whoever drew its halves."""
    async with live_mesh(tiny_shared, shape_of(road)) as mesh:
        prompt, bias = tiny.prompt(90), readable(tiny)
        plain = await whole(mesh, prompt, bias)
        await mesh.settled()
        await mesh.flush()
        found = [plain.text[at : at + 4] for at in range(SECOND - 4)]
        missed = [plain.text[at : at + 4] + "\n" for at in range(SECOND - 4)]
        asks = [mesh.client.streamed(prompt, SECOND, logit_bias=bias, stop=stop) for stop in found + missed]
        answers = await crowd(*asks)
        for stop, answer in zip(found, answers, strict=False):
            cut = plain.text.index(stop)
            assert answer.text == plain.text[:cut]
            assert answer.finish == "stop"
            assert answer.stop == stop
            assert answer.ids == plain.ids[: cut + len(stop)]
            assert answer.usage["completion_tokens"] == cut + len(stop)
        for answer in answers[len(found) :]:
            assert answer.text == plain.text
            assert answer.ids == plain.ids
            assert answer.finish == "length"
        if road in ("one_shot", "catch_up"):
            assert any(across(answer, at, 4, 90) for at, answer in enumerate(answers[len(found) :]))


def across(answer: Answer, at: int, length: int, prompt: int) -> bool:
    """Whether the ids [at, at + length) of the answer were drawn by more than one owner."""
    seams = [part["start"] - prompt for part in answer.pdd["segments"][1:]]
    return any(at < seam < at + length for seam in seams)


@pytest.mark.parametrize("road", MESHES)
async def test_a_stop_string_inside_the_first_id(road: str, tiny: Case, tiny_shared: SharedModel) -> None:
    """Text of the first id before the stop is shown, none of what follows it; nothing is drawn for nobody."""
    async with live_mesh(tiny_shared, shape_of(road)) as mesh:
        ids = [id_ for id_ in range(3 + 256, tiny.model.config.vocab) if id_ != EOS_ID]
        bias = {str(id_): -100.0 for id_ in range(tiny.model.config.vocab) if id_ not in ids}
        prompt = tiny.prompt(41)
        plain = await mesh.client.complete(prompt, 3, logit_bias=bias)
        first = (await mesh.client.complete(prompt, 1, logit_bias=bias)).text
        assert len(first) >= 2
        answer = await mesh.client.complete(prompt, 12, logit_bias=bias, stop=first[1])
        assert answer.text == first[0]
        assert answer.ids == plain.ids[:1]
        assert answer.finish == "stop"
        shown = await mesh.client.complete(
            prompt, 12, logit_bias=bias, stop=[first[1]], include_stop_str_in_output=True
        )
        assert shown.text == first[:2]
