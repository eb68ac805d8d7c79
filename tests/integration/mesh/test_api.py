"""The API over a whole mesh: the official client's conversations, choices, overload, what is shown."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.live_client import Answer, Refused
from tests.support.live_judge import Judge, crowd, synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SharedModel, SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.replay import replay
from tests.support.tiny_case import BLOCK_TOKENS, Case

NO_SPECIALS = {"0": -100, "1": -100, "2": -100}
"""An answer with an id that has no text is not found again by its text."""


def client_of(mesh: LiveMesh) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{mesh.client.http.base_url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("road", ["P-MD", "one_shot", "catch_up"])
async def test_a_conversation_is_cached_turn_by_turn(road: str, tiny: Case, tiny_shared: SharedModel) -> None:
    """The answer's ids, whatever their text, are what the next prompt has in its place: no block is computed
    or sent twice."""
    judge = Judge(tiny.reference)
    shape = Shape(blocks=1024, rate_mbit=4.0, rtt_ms=2.0, router=ROADS[road][1])
    async with live_mesh(tiny_shared, shape) as mesh, client_of(mesh) as client:
        messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Answer in riddles."}]
        known: list[int] = []
        held = range(1)
        for turn in range(3):
            messages.append({"role": "user", "content": f"What is the {turn}th thing that is not the thing?"})
            answer, content = Answer(), ""
            stream = await client.chat.completions.create(
                model="tested",
                messages=messages,
                max_tokens=24,
                temperature=0.7,
                seed=turn,
                logit_bias=NO_SPECIALS,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"return_token_ids": True},
                extra_headers={"X-PDD-Trace": "1"},
            )
            async for chunk in stream:
                content += "".join(choice.delta.content or "" for choice in chunk.choices)
                answer.take(chunk.model_dump())
            await mesh.settled()
            judge.take(answer.prompt, answer, 24, temperature=0.7, seed=turn, logit_bias=NO_SPECIALS)
            assert answer.prompt[: len(known)] == known
            assert answer.cached in held
            known = [*answer.prompt, *answer.ids]
            cut = answer.pdd["cut"]["count"]
            most = (len(known) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            # Of an answer that ends at the relay main decode has as much as it was told while it stood by.
            least = most if cut else len(answer.prompt) // BLOCK_TOKENS * BLOCK_TOKENS
            held = range(least, most + 1)
            messages.append({"role": "assistant", "content": content})
    judge.verdict()


async def test_several_choices_of_several_prompts(tiny: Case, tiny_shared: SharedModel) -> None:
    """Each choice is the reference's with its number; a prompt's choices share its transfer."""
    async with live_mesh(tiny_shared, Shape(rate_mbit=6.0, router=ROADS["one_shot"][1])) as mesh:
        prompts = [tiny.prompt(61), tiny.prompt(40)]
        fields: dict[str, Any] = {"temperature": 1.0, "seed": 77, "n": 3, "ignore_eos": True}
        response = await mesh.client.http.post(
            "/v1/completions",
            json={"prompt": prompts, "max_tokens": 12, "return_token_ids": True, **fields},
        )
        body = response.json()
        assert [choice["index"] for choice in body["choices"]] == list(range(6))
        for at, choice in enumerate(body["choices"]):
            rules = {"temperature": 1.0, "seed": 77, "choice": at % 3}
            found = replay(tiny.reference, prompts[at // 3], choice["token_ids"], rules)
            assert found.ok, found
        assert len({tuple(choice["token_ids"]) for choice in body["choices"]}) == 6
        assert body["usage"]["completion_tokens"] == 72
        assert body["usage"]["prompt_tokens"] == 101


async def test_load_is_shed_before_it_hurts(synthetic: SyntheticModel) -> None:
    """What is too much is refused with Retry-After; what was taken is answered."""
    shape = Shape(rate_mbit=8.0, router={**ROADS["one_shot"][1], "max_requests": 6})
    async with live_mesh(synthetic, shape) as mesh:
        prompts = [[3 + at, *range(4, 84)] for at in range(30)]
        asks = [mesh.client.complete(prompt, 30, ignore_eos=True) for prompt in prompts]
        results = await asyncio.gather(*asks, return_exceptions=True)
        taken = [one for one in results if isinstance(one, Answer)]
        refused = [one for one in results if isinstance(one, Refused)]
        assert len(taken) >= 6
        assert len(taken) + len(refused) == 30
        assert all(one.status == 429 and float(one.headers["retry-after"]) > 0 for one in refused)
        for prompt, one in zip(prompts, results, strict=True):
            if isinstance(one, Answer):
                assert one.ids == synthetic_answer(prompt, 30, mesh.vocab)


async def test_what_a_router_shows(synthetic: SyntheticModel) -> None:
    async with live_mesh(synthetic, Shape(router=ROADS["P-MD"][1])) as mesh:
        await crowd(*(mesh.client.complete([5 + at, 6, 7, 8, 9], 3, ignore_eos=True) for at in range(3)))
        ready = await mesh.client.http.get("/ready")
        assert ready.status_code == 200
        assert ready.json()["pools"][0]["pipelines"]["P-MD"]["possible"]
        assert (await mesh.client.http.get("/health")).status_code == 200
        metrics = (await mesh.client.http.get("/metrics")).text
        assert "requests_finished_total" in metrics
        models = (await mesh.client.http.get("/v1/models")).json()
        assert [one["id"] for one in models["data"]] == ["synthetic"]
        await mesh.stop("main-0", drain=True)
        assert (await mesh.client.http.get("/ready")).status_code == 503
        await mesh.start("main-0")
        await mesh.until_ready()
        assert (await mesh.client.http.get("/ready")).status_code == 200
