"""/v1/messages: Anthropic's shapes around the same chats; whole answers and streams say the same; errors in
its shape."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.router.front.keys import read_keys
from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.requests import Broken, Done
from shared.errors import RequestFailed, Unavailable
from shared.runtime.settings import HttpConfig
from shared.wire.messages import FinishReason
from tests.support.fake_generator import FakeGenerator, breaks, says
from tests.support.front_door import MODEL, Door, Wire, ask, named_events
from tests.support.small_tokenizer import small_tokenizer
from tests.support.tool_templates import QWEN

PATH = "/v1/messages"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TEXT = f"<think>\nso\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
TOOLS = [{"name": "get_weather", "description": "now", "input_schema": {"type": "object"}}]


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    marks = [("<tool_call>", False), ("</tool_call>", False)]
    where = Path(tmp_path_factory.mktemp("messages"))
    return load_tokenizer(small_tokenizer(where / "model", template=QWEN, marks=marks))


def door(tokenizer: Tokenizer, text: str = "hello world", *, cached: int = 0, **http: Any) -> Door:
    generator = FakeGenerator(says(*tokenizer.encode(text), cached=cached, trace={"pipeline": "MD"}))
    return Door(tokenizer, generator, http=HttpConfig(**http))


def body(**fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "the question"}],
        **fields,
    }


async def stream(front: Door, **fields: Any) -> list[Any]:
    response = await front.post(PATH, body(stream=True, **fields))
    assert response.status_code == 200, response.text
    return named_events(response.text)


def gathered(events: list[Any]) -> dict[str, Any]:
    """The message that a stream adds up to, as Anthropic's client does it."""
    assert events[0]["type"] == "message_start"
    message: dict[str, Any] = dict(events[0]["message"])
    blocks: list[Any] = []
    for event in events[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": "", "open": True})
        elif kind == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            assert blocks[-1]["open"]
            delta = event["delta"]
            name = {"text_delta": "text", "thinking_delta": "thinking"}.get(delta["type"])
            if name is None:
                blocks[-1]["json"] += delta["partial_json"]
            else:
                blocks[-1][name] += delta[name]
        elif kind == "content_block_stop":
            assert blocks[event["index"]].pop("open")
        elif kind == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    assert [event["type"] for event in events].count("message_stop") == 1
    assert events[-1]["type"] == "message_stop"
    for block in blocks:
        assert "open" not in block
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(written)
    return message | {"content": blocks}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    return {key: value for key, value in message.items() if key != "id"} | {"content": blocks}


async def test_a_whole_message(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, cached=7)
    response = await front.post(PATH, body(system="rules", metadata={"user_id": "ann"}))
    assert response.status_code == 200
    message = response.json()
    assert message.pop("id").startswith("msg_")
    prompt = front.generator.requests[0].ids
    told = "<|im_start|>system\nrules<|im_end|>\n<|im_start|>user\nthe question<|im_end|>"
    assert tokenizer.decode(prompt).startswith(told)
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(prompt) - 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 7,
            "output_tokens": len(tokenizer.encode("hello world")) + 1,
        },
    }


async def test_thoughts_words_and_calls_in_order_whole_and_streamed(qwen: Tokenizer) -> None:
    front = door(qwen, TEXT, cached=3)
    whole = (await front.post(PATH, body(tools=TOOLS))).json()
    use = {"type": "tool_use", "name": "get_weather", "input": {"city": "Paris"}}
    assert without_ids(whole)["content"] == [
        {"type": "thinking", "thinking": "so", "signature": ""},
        {"type": "text", "text": "Let me see."},
        use,
        use,
    ]
    names = [block["id"] for block in whole["content"] if block["type"] == "tool_use"]
    assert len(set(names)) == 2
    assert all(name.startswith("toolu_") for name in names)
    assert whole["stop_reason"] == "tool_use"
    assert whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    events = await stream(front, tools=TOOLS)
    assert without_ids(gathered(events)) == without_ids(whole)
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["input_tokens"] == len(front.generator.requests[0].ids)


async def test_a_turn_with_results_comes_back_as_it_was_drawn(qwen: Tokenizer) -> None:
    front = door(qwen, TEXT)
    first = (await front.post(PATH, body(tools=TOOLS))).json()
    names = [block["id"] for block in first["content"] if block["type"] == "tool_use"]
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": names[0], "content": "cold"},
        {"type": "tool_result", "tool_use_id": names[1], "content": [{"type": "text", "text": "no"}]},
        {"type": "text", "text": "and"},
    ]
    results[1]["is_error"] = True
    turns = [*body()["messages"], {"role": "assistant", "content": first["content"]}]
    turns.append({"role": "user", "content": results})
    response = await front.post(PATH, body(tools=TOOLS, messages=turns), x_pdd_trace="1")
    assert response.json()["pdd"]["splice"] == "full"
    one, two = front.generator.requests
    log = [*one.ids, *qwen.encode(TEXT), 2]
    assert two.ids[: len(log)] == log
    rest = qwen.decode(two.ids[len(log) :])
    assert "<tool_response>\ncold\n</tool_response>" in rest
    assert "<tool_response>\nError: no\n</tool_response>" in rest
    assert "<|im_start|>user\nand<|im_end|>" in rest


async def test_it_is_the_same_prompt_as_chats(qwen: Tokenizer) -> None:
    front = door(qwen)
    marked = {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "one"}, marked]
    await front.post(PATH, body(system=system, tools=TOOLS))
    function = {"name": "get_weather", "description": "now", "parameters": {"type": "object"}}
    messages = [{"role": "system", "content": "one\ntwo"}, *ask()["messages"]]
    await front.chat(messages=messages, tools=[{"type": "function", "function": function}])
    one, two = front.generator.requests
    assert one.ids == two.ids
    assert one.session == two.session
    alone = body(system=system, tools=TOOLS)
    del alone["max_tokens"]
    counted = await front.post(PATH + "/count_tokens", alone)
    assert counted.json() == {"input_tokens": len(one.ids)}


async def test_turns_that_follow_one_another_are_one(qwen: Tokenizer) -> None:
    front = door(qwen)
    turns = [
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
    ]
    await front.post(PATH, body(messages=turns))
    assert "user\none\ntwo<|im_end|>" in qwen.decode(front.generator.requests[0].ids)


async def test_a_last_turn_of_the_assistant_is_continued(qwen: Tokenizer) -> None:
    front = door(qwen, " world")
    turns = [*body()["messages"], {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}]
    message = (await front.post(PATH, body(messages=turns))).json()
    assert message["content"] == [{"type": "text", "text": " world"}]
    assert qwen.decode(front.generator.requests[0].ids).endswith("assistant\nhello")


async def test_how_an_answer_ended(qwen: Tokenizer) -> None:
    front = door(qwen, "hello world and other")
    for fields, reason, sequence, text in (
        ({"stop_sequences": ["ld a", "zz"]}, "stop_sequence", "ld a", "hello wor"),
        ({"max_tokens": 2}, "max_tokens", None, qwen.decode(qwen.encode("hello world and other")[:2])),
        ({}, "end_turn", None, "hello world and other"),
    ):
        whole = (await front.post(PATH, body(**fields))).json()
        assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
        assert whole["content"][0]["text"] == text
        assert without_ids(gathered(await stream(front, **fields))) == without_ids(whole)


async def test_one_call_at_most(qwen: Tokenizer) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = (await door(qwen, TEXT).post(PATH, body(tools=TOOLS, tool_choice=choice))).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["stop_reason"] == "tool_use"


async def test_thinking_can_be_switched(qwen: Tokenizer) -> None:
    front = door(qwen)
    for kind in ("disabled", "adaptive"):
        await front.post(PATH, body(thinking={"type": kind}))
    ends = [qwen.decode(request.ids).endswith("</think>\n\n") for request in front.generator.requests]
    assert ends == [True, False]


async def test_sampling_and_ours_reach_the_core(qwen: Tokenizer) -> None:
    front = door(qwen)
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "priority": -1, "timeout": 9.0}
    await front.post(PATH, body(cache_salt="me", **fields), x_pdd_without="relay")
    request = front.generator.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 5, 7)
    assert (request.priority, request.deadline, request.relay_allowed) == (-1, 9.0, False)
    assert sampling.max_pos == len(request.ids) + 200
    assert request.salt


async def test_the_trace(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    whole = await front.post(PATH, body(), x_pdd_trace="1")
    assert whole.json()["pdd"]["pipeline"] == "MD"
    response = await front.post(PATH, body(stream=True), x_pdd_trace="1")
    events = named_events(response.text)
    assert [list(event["pdd"]) for event in events if event["type"] == "content_block_delta"] == [["owner"]]
    assert events[-2]["pdd"]["pipeline"] == "MD"


def turn(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


DEEP = json.loads('{"a":' * 900 + "1" + "}" * 900)
USE = {"type": "tool_use", "id": "a"}
ODD = {"type": "object", "not": {"required": ["a"]}}
BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "king", "content": "a"}]}, 400, "messages[0].role"),
    (turn({"type": "image", "source": {}}), 501, "messages[0].content[0].type"),
    (turn({"type": "text"}), 400, "messages[0].content[0].text"),
    (turn(USE), 400, "messages[0].content[0].type"),
    (turn({"type": "tool_result"}), 400, "messages[0].content[0].tool_use_id"),
    (turn(USE, role="assistant"), 400, "messages[0].content[0].name"),
    (turn({**USE, "name": "f", "input": {}}, role="assistant"), 400, "messages"),
    (turn({"type": "text", "text": "a", "citations": [1]}), 501, "citations"),
    (turn({**USE, "name": "f", "input": DEEP}, role="assistant"), 400, "messages[0].content[0].input"),
    ({"tools": [{"name": "f", "input_schema": DEEP}]}, 400, "parameters"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 501, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, 400, "tools[0].input_schema"),
    ({"tools": [{"name": "f", "strict": True, "input_schema": ODD}]}, 400, "tools[0].input_schema.not"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, 400, "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "none"}}, 400, "tool_choice"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": ODD}}},
        400,
        "output_config.format.schema.not",
    ),
    ({"tool_choice": {"type": "always"}}, 400, "tool_choice.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, 501, "thinking.budget_tokens"),
    ({"thinking": {"type": "hard"}}, 501, "thinking.type"),
    ({"container": "x"}, 501, "container"),
    ({"output_config": {"effort": "high"}}, 501, "output_config"),
    ({"nonsense": 1}, 400, "nonsense"),
    ({"temperature": -1}, 400, "temperature"),
    ({"max_tokens": 5000}, 400, "max_tokens"),
    ({"model": "other"}, 404, "model"),
]


@pytest.mark.parametrize(("fields", "status", "said"), BAD, ids=lambda value: str(value)[:50])
async def test_bad_bodies(qwen: Tokenizer, fields: dict[str, Any], status: int, said: str) -> None:
    front = door(qwen)
    response = await front.post(PATH, body(**fields))
    assert response.status_code == status, response.text
    answer = response.json()
    assert set(answer) == {"type", "error"}
    assert answer["type"] == "error"
    kinds = {400: "invalid_request_error", 404: "not_found_error", 501: "not_implemented_error"}
    assert answer["error"]["type"] == kinds[status]
    assert said in answer["error"]["message"]
    assert not front.generator.streams


async def test_neutral_values_are_taken(qwen: Tokenizer) -> None:
    fields: dict[str, Any] = {
        "tools": [{**TOOLS[0], "type": "custom", "cache_control": {"type": "ephemeral"}, "strict": False}],
        "tool_choice": {"type": "auto"},
        "service_tier": "auto",
        "output_config": {},
        "container": None,
        "cache_control": {"type": "ephemeral"},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "context_management": {"edits": []},
    }
    assert (await door(qwen).post(PATH, body(**fields))).status_code == 200


async def test_errors_before_and_after_the_first_event(tokenizer: Tokenizer) -> None:
    for streamed in (False, True):
        front = Door(tokenizer, FakeGenerator(breaks(Unavailable("no prefill worker", 2.0))))
        response = await front.post(PATH, body(stream=streamed))
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        assert response.json()["error"] == {"type": "overloaded_error", "message": "no prefill worker"}
    front = Door(tokenizer)
    wire = Wire(front.app, body(stream=True), PATH)
    (one,) = await front.generator.started()
    one.tokens(tokenizer.encode("hello"))
    await wire.next()
    one.push(Broken(RequestFailed("worker p-1 was lost")))
    await wire.end()
    events = named_events(wire.text)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert events[-1]["error"] == {"type": "api_error", "message": "worker p-1 was lost"}


async def test_a_silent_stream_pings(tokenizer: Tokenizer) -> None:
    front = Door(tokenizer, http=HttpConfig(keep_alive=0.005))
    wire = Wire(front.app, body(stream=True), PATH)
    (one,) = await front.generator.started()
    while wire.text.count("event: ping\n") < 3:
        await asyncio.wait_for(wire.next(), 5)
    one.push(Done(FinishReason.LENGTH, len(one.request.ids), 0, {}))
    await wire.end()
    events = named_events(wire.text)
    assert gathered(events)["content"] == []
    assert gathered(events)["stop_reason"] == "max_tokens"


async def test_keys_come_in_either_header(tokenizer: Tokenizer) -> None:
    front = Door(tokenizer, FakeGenerator(says(5)), keys=read_keys("acme key-of-acme"))
    tried: list[tuple[dict[str, str], int]] = [
        ({"x_api_key": "key-of-acme"}, 200),
        ({"authorization": "Bearer key-of-acme"}, 200),
        ({"authorization": "Bearer key-of-acme", "x_api_key": "other"}, 200),
        ({"x_api_key": "other-key"}, 401),
        ({}, 401),
    ]
    for headers, status in tried:
        response = await front.post(PATH, body(), **headers)
        assert response.status_code == status
        if status == 401:
            assert response.json()["error"]["type"] == "authentication_error"


async def test_other_paths_and_methods_answer_in_its_shape(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    assert (await front.get(PATH)).json()["error"]["type"] == "invalid_request_error"
    assert (await front.post(PATH + "/batches", {})).json()["error"]["type"] == "not_implemented_error"
    assert (await front.post(PATH + "/nonsense", {})).json()["error"]["type"] == "not_found_error"
