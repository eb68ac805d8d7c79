"""/v1/completions: every form of prompt, right answers in order, echo and legacy log-probabilities."""

from typing import Any

import pytest

from services.router.front.tokens import Tokenizer
from services.router.requests import GenerationRequest, RequestEvent
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import MODEL, Door

PATH = "/v1/completions"


def door(tokenizer: Tokenizer, text: str = " hello", **options: Any) -> Door:
    return Door(tokenizer, FakeGenerator(says(*tokenizer.encode(text), **options)))


def body(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, **fields}


def repeater(request: GenerationRequest) -> list[RequestEvent]:
    """Answers with the prompt's first id, so that each answer names its prompt."""
    return list(says(request.ids[0], cached=request.ids[0])(request))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("the time", ["the time"]),
        (["the time", "hello"], ["the time", "hello"]),
        ([40, 41], [[40, 41]]),
        ([[40], [41, 42]], [[40], [41, 42]]),
    ],
)
async def test_every_form_of_prompt(tokenizer: Tokenizer, prompt: Any, expected: list[Any]) -> None:
    front = door(tokenizer)
    response = await front.post(PATH, body(prompt))
    assert response.status_code == 200, response.text
    ids = [one if isinstance(one, list) else tokenizer.encode(one) for one in expected]
    assert [request.ids for request in front.generator.requests] == ids
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(ids)))
    assert {choice["text"] for choice in choices} == {" hello"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_list_of_prompts_with_n_gives_the_right_answers_in_order(
    tokenizer: Tokenizer, stream: bool
) -> None:
    front = Door(tokenizer, FakeGenerator(repeater))
    prompts = [tokenizer.encode(word) for word in ("hello", "time", "good")]
    asked = body(prompts, n=2)
    if stream:
        events = await front.events(PATH, {**asked, "stream_options": {"include_usage": True}})
        texts = [""] * 6
        for event in events[:-1]:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        usage = events[-2]["usage"]
    else:
        answer = (await front.post(PATH, asked)).json()
        texts = [choice["text"] for choice in answer["choices"]]
        usage = answer["usage"]
    firsts = [tokenizer.decode(ids[:1]) for ids in prompts]
    assert texts == [text for text in firsts for _ in range(2)]
    assert usage["prompt_tokens"] == sum(map(len, prompts))
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert usage["prompt_tokens_details"]["cached_tokens"] == sum(ids[0] for ids in prompts)
    assert [request.sampling.choice for request in front.generator.requests] == [0, 1] * 3


async def test_max_tokens_defaults_to_sixteen(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    await front.post(PATH, body("the time"))
    await front.post(PATH, body([5] * 4090))
    assert [request.sampling.max_pos - len(request.ids) for request in front.generator.requests] == [16, 6]


@pytest.mark.parametrize("prompt", ["the time", [40, 41]])
async def test_echo(tokenizer: Tokenizer, prompt: Any) -> None:
    front = door(tokenizer)
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    answer = (await front.post(PATH, body(prompt, echo=True))).json()
    assert answer["choices"][0]["text"] == text + " hello"
    events = await front.events(PATH, body(prompt, echo=True))
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == text + " hello"


async def test_logprobs_in_the_legacy_shape(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, "hé")
    answer = (await front.post(PATH, body("the time", logprobs=2, return_token_ids=True))).json()
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    ids = [*tokenizer.encode("hé"), 2]
    assert choice["token_ids"] == ids
    assert choice["prompt_token_ids"] == front.generator.requests[0].ids
    assert logprobs["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "<|im_end|>"]
    assert logprobs["token_logprobs"] == [-token / 8 for token in ids]
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert logprobs["tokens"][0] in logprobs["top_logprobs"][0]
    assert front.generator.requests[0].sampling.logprobs == 2
    plain = (await front.post(PATH, body("the time", logprobs=0))).json()["choices"][0]["logprobs"]
    assert plain["top_logprobs"] is None
    assert plain["token_logprobs"] == logprobs["token_logprobs"]


async def test_a_stream_with_logprobs_and_ids_tells_each_once(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, "hé time")
    whole = (await front.post(PATH, body("the", logprobs=1, return_token_ids=True))).json()["choices"][0]
    events = await front.events(PATH, body("the", logprobs=1, return_token_ids=True))
    chunks = [event["choices"][0] for event in events[:-1]]
    tokens = [token for chunk in chunks for token in (chunk["logprobs"] or {"tokens": []})["tokens"]]
    offsets = [at for chunk in chunks for at in (chunk["logprobs"] or {"text_offset": []})["text_offset"]]
    assert tokens == whole["logprobs"]["tokens"]
    assert offsets == whole["logprobs"]["text_offset"]
    assert [token for chunk in chunks for token in chunk.get("token_ids", [])] == whole["token_ids"]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"] == "hé time"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]


async def test_a_continued_text_takes_the_drawn_ids(tokenizer: Tokenizer) -> None:
    drawn = [token for letter in " hello" for token in tokenizer.encode(letter)]
    front = Door(tokenizer, FakeGenerator(says(*drawn)))
    await front.post(PATH, body("the time"))
    await front.post(PATH, body("the time hello and"))
    assert front.generator.requests[1].ids == [
        *tokenizer.encode("the time"),
        *drawn,
        *tokenizer.encode(" and"),
    ]
