"""Log-probabilities of prompts: in vLLM's shape, and before the answer's where a prompt is echoed."""

from __future__ import annotations

import pytest

from services.router.front.sampling import MOST_SCORES, check_scores
from services.router.front.tokens import Tokenizer
from shared.errors import InvalidRequest, Unavailable
from tests.support.fake_generator import FakeGenerator, breaks, says
from tests.support.front_door import Door

COMPLETIONS = "/v1/completions"


async def test_completions(tokenizer: Tokenizer) -> None:
    generator = FakeGenerator(says(70, 71))
    door = Door(tokenizer, generator)
    body = {"prompt": [[50, 60, 70], [80]], "prompt_logprobs": 1, "n": 2, "max_tokens": 9}
    answer = (await door.post(COMPLETIONS, body)).json()
    first, again, second, _ = (choice["prompt_logprobs"] for choice in answer["choices"])
    assert first == again  # one prompt's choices have the same
    assert first[0] is None
    assert {name: entry["logprob"] for name, entry in first[1].items()} == {"60": -7.5, "61": -1.0}
    assert {name: entry["rank"] for name, entry in first[1].items()} == {"60": None, "61": 1}
    assert first[1]["61"]["decoded_token"] == tokenizer.vocabulary.piece(61).decode()
    assert [entry and sorted(entry) for entry in first] == [None, ["60", "61"], ["70", "71"]]
    assert second == [None]
    asked = [
        (one.request.scores, one.request.relay_allowed, one.request.local_allowed)
        for one in generator.streams
    ]
    assert asked == [(1, False, False), (-1, True, True), (1, False, False), (-1, True, True)]


async def test_chat(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, FakeGenerator(says(70)))
    answer = (await door.chat(prompt_logprobs=0, return_token_ids=True)).json()
    found, ids = answer["prompt_logprobs"], answer["prompt_token_ids"]
    assert found[0] is None
    assert [list(entry) for entry in found[1:]] == [[str(one)] for one in ids[1:]]
    assert "prompt_logprobs" not in (await door.chat()).json()


async def test_an_echo_with_logprobs(tokenizer: Tokenizer) -> None:
    text = "hello world"
    ids = tokenizer.encode(text)
    drawn = tokenizer.encode(" there")
    door = Door(tokenizer, FakeGenerator(says(*drawn)))
    body = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": len(drawn)}
    (choice,) = (await door.post(COMPLETIONS, body)).json()["choices"]
    assert choice["text"] == text + " there"
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert found["token_logprobs"] == [None, *(-token / 8 for token in [*ids[1:], *drawn])]
    assert found["top_logprobs"][0] is None
    assert all(len(one) == 2 for one in found["top_logprobs"][1:])
    for token, at in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"][at : at + len(token)] == token
    assert "prompt_logprobs" not in choice
    plain = (await door.post(COMPLETIONS, {**body, "logprobs": 0})).json()["choices"][0]["logprobs"]
    assert plain["top_logprobs"] is None


async def test_scores_that_did_not_come_are_a_failure(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, FakeGenerator(breaks(Unavailable("gone", 1.0), 5)))
    response = await door.post(COMPLETIONS, {"prompt": [5, 6], "prompt_logprobs": 1})
    assert response.status_code == 500
    assert "prompt" in response.json()["error"]["message"]


def test_more_than_an_answer_carries() -> None:
    check_scores(MOST_SCORES // 21, 20)
    check_scores(10**6, -1)
    with pytest.raises(InvalidRequest, match="prompt_logprobs"):
        check_scores(MOST_SCORES // 21 + 1, 20)
