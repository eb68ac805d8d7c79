"""Tools: offered in the model's own words, calls read whole and streamed alike, and returned as they were
drawn."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.front.choice import Choice, ChoiceRules
from services.router.front.detokenizer import Detokenizer
from services.router.front.reading.formats import FORMATS, Reading
from services.router.front.reading.pieces import Piece, Said, ToolCall, joined
from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.requests import Done, Tokens
from shared.runtime.settings import HttpConfig
from shared.wire.messages import FinishReason, Role
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import Door, Wire, ask
from tests.support.small_tokenizer import small_tokenizer
from tests.support.tool_templates import LLAMA, QWEN, SMOLLM

EOS = 2
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "now", "parameters": PARAMETERS},
    },
    {"type": "function", "function": {"name": "f"}},
]
PARIS = '{"city":"Paris"}'  # as a model writes it, not as `tojson` would
ONE = '<tool_call>\n{"name": "get_weather", "arguments": ' + PARIS + "}\n</tool_call>"
TWO = f'Let me see.\n{ONE}\n<tool_call>\n{{"name": "f", "arguments": {{}}}}\n</tool_call>'
TEMPLATES = {"hermes": QWEN, "llama3_json": LLAMA, "smollm2": SMOLLM}


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    where = Path(tmp_path_factory.mktemp("tools"))
    marks = [("<tool_call>", False), ("</tool_call>", False), ("<|python_tag|>", True)]
    return {
        name: load_tokenizer(small_tokenizer(where / name, template=template, marks=marks))
        for name, template in TEMPLATES.items()
    }


def door(tokenizer: Tokenizer, text: str, **http: Any) -> Door:
    return Door(tokenizer, FakeGenerator(says(*tokenizer.encode(text))), http=HttpConfig(**http))


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]


def streamed(events: list[Any]) -> dict[str, Any]:
    """The message that a stream adds up to."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in events[:-1]:
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                assert call["index"] == len(message["tool_calls"])
                message["tool_calls"].append(call)
            message["finish"] = choice["finish_reason"] or message.get("finish")
    return message


async def test_parallel_calls_whole_and_streamed(tokenizers: dict[str, Tokenizer]) -> None:
    front = door(tokenizers["hermes"], TWO)
    body = (await front.chat(tools=TOOLS)).json()
    choice = body["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "Let me see."
    assert calls_of(message) == [("get_weather", PARIS), ("f", "{}")]
    assert [call["type"] for call in message["tool_calls"]] == ["function", "function"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert body["usage"]["completion_tokens"] == len(tokenizers["hermes"].encode(TWO)) + 1
    events = await front.events(
        "/v1/chat/completions", ask(tools=TOOLS, logprobs=True, return_token_ids=True)
    )
    told = streamed(events)
    assert told["content"] == message["content"]
    assert calls_of(told) == calls_of(message)
    assert told["finish"] == "tool_calls"
    ids = [token for event in events[:-1] for token in event["choices"][0].get("token_ids", [])]
    assert ids == [*tokenizers["hermes"].encode(TWO), EOS]


async def test_an_answer_with_calls_only_has_no_content(tokenizers: dict[str, Tokenizer]) -> None:
    front = door(tokenizers["hermes"], f"{ONE}\n")
    message = (await front.chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize(
    "text", ["<tool_call>\n{broken}\n</tool_call>", '<tool_call>{"name": "f", "argum', "no call at all  \n"]
)
async def test_a_broken_call_is_content(tokenizers: dict[str, Tokenizer], text: str) -> None:
    front = door(tokenizers["hermes"], text)
    choice = (await front.chat(tools=TOOLS)).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert streamed(await front.events("/v1/chat/completions", ask(tools=TOOLS)))["content"] == text


async def test_a_client_hears_of_a_long_call_while_it_is_drawn(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["hermes"]
    front = Door(tokenizer, http=HttpConfig(keep_alive=0.01))
    wire = Wire(front.app, ask(tools=TOOLS, stream=True))
    (one,) = await front.generator.started()
    at = len(one.request.ids)
    ids = tokenizer.encode('<tool_call>{"name": "f", "arguments": {"a": "')
    async with asyncio.timeout(5):
        while wire.text.count(": waiting\n\n") < 3:
            one.tokens(ids, start=at)
            at += len(ids)
            ids = tokenizer.encode("a")
            await asyncio.sleep(0)
    assert '"tool_calls"' not in wire.text
    wire.leave()
    await wire.end()


async def test_a_call_that_the_limit_cuts_is_content_and_says_length(
    tokenizers: dict[str, Tokenizer],
) -> None:
    front = door(tokenizers["hermes"], ONE)
    choice = (await front.chat(tools=TOOLS, max_tokens=9)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == tokenizers["hermes"].decode(tokenizers["hermes"].encode(ONE)[:9])


async def test_without_tools_nothing_is_read(tokenizers: dict[str, Tokenizer]) -> None:
    front = door(tokenizers["hermes"], ONE)
    silent: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": None}]
    for fields in (*silent, {"tools": TOOLS, "tool_choice": "none"}):
        choice = (await front.chat(fields)).json()["choices"][0]
        assert choice["message"]["content"] == ONE
        assert choice["finish_reason"] == "stop"


async def test_tool_choice_none_keeps_the_prompt_and_forbids_the_mark(
    tokenizers: dict[str, Tokenizer],
) -> None:
    front = door(tokenizers["hermes"], "hello")
    await front.chat(tools=TOOLS)
    await front.chat(tools=TOOLS, tool_choice="none", logit_bias={"40": 1})
    one, two = front.generator.requests
    mark = tokenizers["hermes"].vocabulary.added_id("<tool_call>")
    assert one.ids == two.ids
    assert (one.sampling.logit_bias, two.sampling.logit_bias) == ({}, {40: 1.0, mark: -100.0})


async def test_one_call_at_most_ends_the_answer_after_it(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["hermes"]
    front = door(tokenizer, TWO)
    body = (await front.chat(tools=TOOLS, parallel_tool_calls=False)).json()
    message = body["choices"][0]["message"]
    assert calls_of(message) == [("get_weather", PARIS)]
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["usage"]["completion_tokens"] == len(tokenizer.encode("Let me see.\n" + ONE))
    smol = door(tokenizers["smollm2"], '<tool_call>[{"name": "f"}, {"name": "f"}]</tool_call> and')
    message = (await smol.chat(tools=TOOLS, parallel_tool_calls=False)).json()["choices"][0]["message"]
    assert (len(message["tool_calls"]), message["content"]) == (1, None)


async def turn(front: Door, text: str, name: str, **fields: Any) -> tuple[str, Any]:
    """A question, the answer's calls, their results; the second prompt's text, and the second answer's
    trace."""
    first = await front.chat(tools=TOOLS, **fields)
    message = first.json()["choices"][0]["message"]
    back = {key: value for key, value in message.items() if key in ("role", "content", "tool_calls")}
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result {at}"}
        for at, call in enumerate(message["tool_calls"])
    ]
    messages = [*ask()["messages"], back, *results]
    trace = await front.post(
        "/v1/chat/completions", ask(messages=messages, tools=TOOLS, **fields), x_pdd_trace="1"
    )
    assert trace.status_code == 200, trace.text
    return front.tokenizer.decode(front.generator.requests[-1].ids), trace.json()["pdd"]


async def test_a_call_comes_back_as_it_was_drawn(tokenizers: dict[str, Tokenizer]) -> None:
    front = door(tokenizers["hermes"], TWO)
    prompt, trace = await turn(front, TWO, "hermes")
    assert TWO in prompt
    assert "<tool_response>\nresult 1\n</tool_response>" in prompt
    one, two = front.generator.requests
    log = [*one.ids, *tokenizers["hermes"].encode(TWO), EOS]
    assert two.ids[: len(log)] == log
    assert trace["splice"] == "full"


async def test_a_call_written_anew_is_counted(tokenizers: dict[str, Tokenizer]) -> None:
    odd = '<tool_call>{"arguments": {"city":  "Paris"}, "name": "get_weather"}</tool_call>'
    front = door(tokenizers["hermes"], odd)
    await turn(front, odd, "hermes")
    assert front.metric("pdd_splice_divergences_total", reason="tool_call") == 1
    bare = '{ "name": "get_weather", "parameters": {"city": "Paris"}}'
    llama = door(tokenizers["llama3_json"], bare)
    await turn(llama, bare, "llama3_json")
    assert llama.metric("pdd_splice_divergences_total", reason="tool_call") == 1


async def test_llama_calls_and_a_template_that_takes_one_at_a_time(tokenizers: dict[str, Tokenizer]) -> None:
    call = '{"name": "get_weather", "parameters": ' + PARIS + "}"
    text = f'<|python_tag|>{call}; {{"name": "f", "parameters": {{}}}}'
    front = door(tokenizers["llama3_json"], text)
    message = (await front.chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert calls_of(message) == [("get_weather", PARIS), ("f", "{}")]
    prompt, _ = await turn(front, text, "llama3_json")
    turns = [line.split("\n", 1)[-1] for line in prompt.split("<|im_start|>")]
    assert f"{call}<|im_end|>\n" in turns
    at = turns.index(f"{call}<|im_end|>\n")
    assert turns[at + 1 : at + 3] == ["result 0<|im_end|>\n", '{"name": "f", "parameters": {}}<|im_end|>\n']
    assert '"name": "get_weather"' in prompt


async def test_smollm_is_told_of_tools_in_its_own_words(tokenizers: dict[str, Tokenizer]) -> None:
    text = '<tool_call>[{"name": "get_weather", "arguments": ' + PARIS + "}]</tool_call>"
    front = door(tokenizers["smollm2"], text)
    prompt, trace = await turn(front, text, "smollm2")
    assert prompt.startswith("<|im_start|>system\nYou are an expert in composing functions.")
    assert (
        f'<tools>[{{"name": "get_weather", "description": "now", "parameters": {json.dumps(PARAMETERS)}'
        in prompt
    )
    assert f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>user\n<tool_response>\nresult 0\n" in prompt
    assert trace["splice"] == "full"
    system = [{"role": "system", "content": "Be brief."}, *ask()["messages"]]
    await front.chat(messages=system, tools=TOOLS)
    assert front.tokenizer.decode(front.generator.requests[-1].ids).startswith(
        "<|im_start|>system\nBe brief.\n\nYou are an expert"
    )


@pytest.mark.parametrize("name", list(TEMPLATES))
async def test_a_format_can_be_set_for_a_template_without_tools(tokenizer: Tokenizer, name: str) -> None:
    text = {"hermes": ONE, "llama3_json": '{"name": "f", "parameters": {}}', "smollm2": f"{ONE}"}[name]
    front = door(tokenizer, text, tool_format=name)
    prompt, _ = await turn(front, text, name)
    assert '"get_weather"' in prompt.split("<|im_end|>")[0]
    assert text.replace("\n", "") in prompt.replace("\n", "").replace("[", "").replace("]", "")
    assert "result 0" in prompt


async def test_a_model_that_knows_no_tools_says_so(
    tokenizer: Tokenizer, tokenizers: dict[str, Tokenizer]
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for front in (door(tokenizer, "x"), door(tokenizers["hermes"], "x", tool_format="none")):
        refused = await front.chat(tools=TOOLS)
        assert (refused.status_code, refused.json()["error"]["param"]) == (501, "tools")
        told = [*ask()["messages"], {"role": "assistant", "tool_calls": [call]}]
        refused = await front.chat(messages=told)
        assert (refused.status_code, refused.json()["error"]["param"]) == (501, "messages[1]")


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ODD = {"type": "object", "properties": {"a": {"not": {}}}}
BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"tools": [{"type": "web_search"}]}, 501, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, 400, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools[0].function.name"),
    ({"tools": [TOOLS[1], TOOLS[1]]}, 400, "tools[1].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
        400,
        "tools[0].function.strict",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": ODD}}]},
        400,
        "tools[0].function.parameters.properties.a.not",
    ),
    ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, 400, "tools[0].function.x"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, 400, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, 501, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, 400, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "always"}, 400, "tool_choice"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"functions": [{"name": "f"}]}, 501, "functions"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]}, 400, "messages[0].tool_calls"),
    ({"messages": [{"role": "user", "content": "a", "tool_call_id": "x"}]}, 400, "messages[0].tool_call_id"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}]},
        501,
        "messages[0].tool_calls[0].type",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "index": 1}]}]},
        400,
        "messages[0].tool_calls[0].index",
    ),
    ({"chat_template_kwargs": {"tools": []}}, 400, "chat_template_kwargs.tools"),
]


@pytest.mark.parametrize(("fields", "status", "param"), BAD, ids=lambda value: str(value)[:50])
async def test_bad_tools(
    tokenizers: dict[str, Tokenizer], fields: dict[str, Any], status: int, param: str
) -> None:
    response = await door(tokenizers["hermes"], "x").chat(fields)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param
    assert param in response.json()["error"]["message"]


@pytest.mark.parametrize("arguments", ["{", "[]", "5", '{"a":' * 70 + "1" + "}" * 70, "{}{}"])
async def test_bad_arguments(tokenizers: dict[str, Tokenizer], arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    response = await door(tokenizers["hermes"], "x").chat(
        messages=[{"role": "assistant", "tool_calls": [call]}]
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].tool_calls[0].function.arguments"


async def test_tool_choice_auto_means_nothing_without_tools(tokenizer: Tokenizer) -> None:
    for choice in ("auto", "none", None):
        assert (await door(tokenizer, "x").chat(tool_choice=choice)).status_code == 200


async def test_tokenize_counts_what_chat_would_send(tokenizers: dict[str, Tokenizer]) -> None:
    front = door(tokenizers["hermes"], "x")
    await front.chat(tools=TOOLS)
    counted = await front.post("/tokenize", {"messages": ask()["messages"], "tools": TOOLS})
    assert counted.json()["tokens"] == front.generator.requests[0].ids


TEXTS = [TWO, "<think>so</think>" + ONE + " done", "<tool_call>{" + ONE, "é😀" + ONE + ONE + "é", "plain 😀 "]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TEXTS), st.booleans(), st.booleans(), st.data())
def test_how_ids_come_in_runs_changes_nothing(
    tokenizers: dict[str, Tokenizer], text: str, one_call: bool, thinks: bool, data: st.DataObject
) -> None:
    tokenizer = tokenizers["hermes"]
    ids = [*tokenizer.encode(text), EOS]
    how = Reading(FORMATS["hermes"], frozenset({"f"}), thinks)
    stops = data.draw(st.sampled_from([(), ("done",), ("}\n",)]))

    def read(ends: list[int]) -> tuple[list[Piece], list[int], int | None, int]:
        rules = ChoiceRules(5, frozenset({EOS}), frozenset({EOS}), stops, one_call=one_call)
        one = Choice(0, rules, Detokenizer(tokenizer.vocabulary), how.reader())
        pieces: list[Piece] = []
        for start, end in zip([0, *ends], [*ends, len(ids)], strict=True):
            delta = one.absorb([Tokens(5 + start, tuple(ids[start:end]), None, Role.MAIN)])
            for piece in delta.pieces if delta else []:
                joined(pieces, piece)
            if one.stop_at is not None:
                break
        last = one.absorb([Done(FinishReason.STOP, one.stop_at or 5 + len(ids), 0, {})])
        for piece in last.pieces if last else []:
            joined(pieces, piece)
        return pieces, one.ids, one.stop_at, one.thought_ids

    cuts = data.draw(st.lists(st.integers(1, len(ids) - 1), max_size=6, unique=True))
    whole = read([])
    assert read(sorted(cuts)) == whole
    assert read(list(range(1, len(ids)))) == whole
    if not stops and not one_call and not thinks and "<tool_call>" not in text:
        assert whole[0] == [Said(text)]
    if one_call:
        assert sum(isinstance(piece, ToolCall) for piece in whole[0]) <= 1
