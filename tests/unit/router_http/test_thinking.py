"""Thoughts: apart from the answer, whole and streamed; counted; and given back to the template."""

from pathlib import Path
from typing import Any

import pytest

from services.router.front.tokens import Tokenizer, load_tokenizer
from shared.runtime.settings import HttpConfig
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import Door, ask
from tests.support.small_tokenizer import small_tokenizer
from tests.support.tool_templates import QWEN

TEXT = "<think>\nthe question\nand\n</think>\n\nhello world"


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(small_tokenizer(Path(tmp_path_factory.mktemp("thinker")) / "model", template=QWEN))


@pytest.fixture(scope="session")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    template = QWEN.replace(
        "{{- '<|im_start|>assistant\\n' }}\n    {%- if enable", "{{- 'A\\n<think>\\n' }}{%- if enable"
    )
    assert template != QWEN
    where = Path(tmp_path_factory.mktemp("opener"))
    return load_tokenizer(small_tokenizer(where / "model", template=template))


def door(tokenizer: Tokenizer, text: str, **http: Any) -> Door:
    return Door(tokenizer, FakeGenerator(says(*tokenizer.encode(text))), http=HttpConfig(**http))


def parts(events: list[Any], key: str) -> list[str]:
    deltas = [choice["delta"] for event in events[:-1] for choice in event["choices"]]
    return [delta[key] for delta in deltas if delta.get(key)]


async def test_a_thought_is_apart_from_the_answer(thinker: Tokenizer) -> None:
    front = door(thinker, TEXT)
    body = (await front.chat()).json()
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "hello world",
        "refusal": None,
        "reasoning_content": "the question\nand",
    }
    ids = thinker.encode(TEXT)
    thought = ids.index(thinker.encode("</think>")[0]) + 1
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": thought}
    assert body["usage"]["completion_tokens"] == len(ids) + 1
    events = await front.events("/v1/chat/completions", ask(stream_options={"include_usage": True}))
    assert "".join(parts(events, "reasoning_content")) == "the question\nand"
    assert "".join(parts(events, "content")) == "hello world"
    assert events[-2]["usage"] == body["usage"]


async def test_a_stop_string_and_a_thought(thinker: Tokenizer) -> None:
    for stop, thought, said in (("ld", "the question\nand", "hello wor"), ("\nand", "the question", None)):
        message = (await door(thinker, TEXT).chat(stop=stop)).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (thought, said)


async def test_a_template_that_opens_the_thought(opener: Tokenizer) -> None:
    message = (await door(opener, "so\n</think>\n\nhello").chat()).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("so", "hello")


async def test_a_template_option_that_closes_it(thinker: Tokenizer) -> None:
    front = door(thinker, "hello")
    message = (await front.chat(chat_template_kwargs={"enable_thinking": False})).json()["choices"][0][
        "message"
    ]
    assert message == {"role": "assistant", "content": "hello", "refusal": None}
    assert thinker.decode(front.generator.requests[0].ids).endswith("<think>\n\n</think>\n\n")


async def test_whether_thoughts_are_read_can_be_set(thinker: Tokenizer, tokenizer: Tokenizer) -> None:
    message = (await door(thinker, TEXT, reasoning_format="none").chat()).json()["choices"][0]["message"]
    assert message["content"] == TEXT
    message = (await door(tokenizer, TEXT).chat()).json()["choices"][0]["message"]
    assert message["content"] == TEXT
    message = (await door(tokenizer, TEXT, reasoning_format="think").chat()).json()["choices"][0]["message"]
    assert message["content"] == "hello world"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_a_thought_that_comes_back_reaches_the_template(thinker: Tokenizer, name: str) -> None:
    front = door(thinker, TEXT)
    message = (await front.chat()).json()["choices"][0]["message"]
    back = {"role": "assistant", "content": message["content"], name: message["reasoning_content"]}
    turns = [*ask()["messages"], back, {"role": "user", "content": "and"}]
    trace = await front.post("/v1/chat/completions", ask(messages=turns), x_pdd_trace="1")
    assert trace.json()["pdd"]["splice"] == "full"
    left = [*ask()["messages"], {"role": "assistant", "content": message["content"]}, turns[-1]]
    await front.chat(messages=left)
    assert front.metric("pdd_splice_divergences_total", reason="thinking") == 1


async def test_a_last_message_can_be_continued(thinker: Tokenizer, tokenizer: Tokenizer) -> None:
    for one in (thinker, tokenizer):
        front = door(one, " world")
        turns = [*ask()["messages"], {"role": "assistant", "content": "hello"}]
        body = (await front.chat(messages=turns, continue_final_message=True)).json()
        assert body["choices"][0]["message"]["content"] == " world"
        assert one.decode(front.generator.requests[0].ids).endswith("<|im_start|>assistant\nhello")
        again = [*ask()["messages"], {"role": "assistant", "content": "hello world"}]
        await front.chat(messages=[*again, {"role": "user", "content": "and"}])
        log = [*front.generator.requests[0].ids, *one.encode(" world"), 2]
        assert front.generator.requests[1].ids[: len(log)] == log


@pytest.mark.parametrize(
    "fields",
    [
        {"continue_final_message": True},
        {"continue_final_message": True, "add_generation_prompt": True},
        {"continue_final_message": True, "messages": [{"role": "assistant", "content": " "}]},
    ],
)
async def test_what_cannot_be_continued(thinker: Tokenizer, fields: dict[str, Any]) -> None:
    response = await door(thinker, "x").chat(fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("continue_final_message", "messages")
