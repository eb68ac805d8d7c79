"""/v1/responses: items and events around the same chats; conversations go on from an answer's id, each
tenant's own."""

from pathlib import Path
from typing import Any

import pytest

from services.router.front.keys import read_keys
from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.requests import Broken
from shared.errors import RequestFailed
from shared.runtime.settings import HttpConfig
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import MODEL, Door, Wire, ask, named_events
from tests.support.small_tokenizer import small_tokenizer
from tests.support.tool_templates import QWEN

PATH = "/v1/responses"
ARGUMENTS = '{"city":"Paris"}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
TEXT = f"<think>\nso\n</think>\n\nLet me see.\n{CALL}"
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": None}]


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    marks = [("<tool_call>", False), ("</tool_call>", False)]
    where = Path(tmp_path_factory.mktemp("responses"))
    return load_tokenizer(small_tokenizer(where / "model", template=QWEN, marks=marks))


def door(tokenizer: Tokenizer, text: str = "hello world", *, cached: int = 0, **http: Any) -> Door:
    generator = FakeGenerator(says(*tokenizer.encode(text), cached=cached, trace={"pipeline": "MD"}))
    return Door(tokenizer, generator, http=HttpConfig(**http))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "the question", **fields}


async def create(front: Door, **fields: Any) -> dict[str, Any]:
    response = await front.post(PATH, body(**fields))
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    return whole


async def stream(front: Door, **fields: Any) -> list[Any]:
    response = await front.post(PATH, body(stream=True, **fields))
    assert response.status_code == 200, response.text
    return named_events(response.text)


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what is new in each."""
    items = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in answer["output"]
    ]
    return {key: value for key, value in answer.items() if key not in ("id", "created_at")} | {
        "output": items
    }


async def test_a_whole_answer(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, cached=7)
    answer = await create(
        front, instructions="rules", max_output_tokens=50, metadata={"a": "b"}, temperature=0.5
    )
    prompt = front.generator.requests[0].ids
    told = "<|im_start|>system\nrules<|im_end|>\n<|im_start|>user\nthe question<|im_end|>"
    assert tokenizer.decode(prompt).startswith(told)
    assert answer["id"].startswith("resp_")
    assert (answer["object"], answer["status"], answer["error"]) == ("response", "completed", None)
    assert (answer["instructions"], answer["metadata"], answer["temperature"]) == ("rules", {"a": "b"}, 0.5)
    (item,) = answer["output"]
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hello world", "annotations": [], "logprobs": []}],
    }
    count = len(tokenizer.encode("hello world")) + 1
    assert answer["usage"] == {
        "input_tokens": len(prompt),
        "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
        "output_tokens": count,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(prompt) + count,
    }
    assert front.generator.requests[0].sampling.max_pos == len(prompt) + 50


async def test_a_stream_tells_of_each_item_as_it_grows(qwen: Tokenizer) -> None:
    front = door(qwen, TEXT)
    whole = await create(front, tools=TOOLS)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][2]["arguments"] == ARGUMENTS
    events = await stream(front, tools=TOOLS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == "completed"
    assert events[0]["response"]["output"] == []
    assert plain(events[-1]["response"]) == plain(whole)
    final = events[-1]["response"]["output"]
    for at, (kind, item) in enumerate(zip(("reasoning_text", "output_text", None), final, strict=True)):
        mine = [event for event in events if event.get("output_index") == at]
        assert mine[0]["type"] == "response.output_item.added"
        assert (mine[0]["item"]["id"], mine[0]["item"]["status"]) == (item["id"], "in_progress")
        assert (mine[-1]["type"], mine[-1]["item"]) == ("response.output_item.done", item)
        name = f"response.{kind}" if kind else "response.function_call_arguments"
        grown = "".join(event["delta"] for event in mine if event["type"] == f"{name}.delta")
        assert grown == (item["content"][0]["text"] if kind else item["arguments"])
        assert [event["type"] for event in mine].count(f"{name}.done") == 1
        if kind:
            assert mine[0]["item"]["content"] == []
            assert mine[1]["part"]["text"] == ""


async def test_a_conversation_goes_on_from_an_answer(qwen: Tokenizer) -> None:
    front = door(qwen, TEXT)
    first = await create(front, tools=TOOLS, instructions="rules")
    call = first["output"][2]["call_id"]
    result = [{"type": "function_call_output", "call_id": call, "output": "cold"}]
    response = await front.post(
        PATH,
        body(tools=TOOLS, instructions="rules", input=result, previous_response_id=first["id"]),
        x_pdd_trace="1",
    )
    second = response.json()
    assert second["previous_response_id"] == first["id"]
    assert second["pdd"]["splice"] == "full"
    one, two = front.generator.requests
    log = [*one.ids, *qwen.encode(TEXT), 2]
    assert two.ids[: len(log)] == log
    assert "<tool_response>\ncold\n</tool_response>" in qwen.decode(two.ids[len(log) :])
    events = await stream(
        front, tools=TOOLS, input="and", instructions="other", previous_response_id=second["id"]
    )
    third = front.generator.requests[2]
    text = qwen.decode(third.ids)
    assert text.count(CALL) == 2
    assert "other" in text
    assert "rules" not in text
    await create(front, input="good", previous_response_id=events[-1]["response"]["id"])
    assert qwen.decode(front.generator.requests[3].ids).count(CALL) == 3


async def test_items_that_a_client_sends_back_make_the_same_prompt(qwen: Tokenizer) -> None:
    front = door(qwen, TEXT)
    first = await create(front, tools=TOOLS, store=False)
    output = [{"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "cold"}]
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "the question"}]}]
    response = await front.post(
        PATH, body(tools=TOOLS, input=[*turns, *first["output"], *output]), x_pdd_trace="1"
    )
    assert response.json()["pdd"]["splice"] == "full"
    gone = await front.post(PATH, body(previous_response_id=first["id"]))
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")
    assert gone.json()["error"]["param"] == "previous_response_id"


async def test_it_is_the_same_prompt_as_chats(qwen: Tokenizer) -> None:
    front = door(qwen)
    await create(front, tools=[{**TOOLS[0], "description": "now"}])
    function = {"name": "get_weather", "description": "now", "parameters": {"type": "object"}}
    await front.chat(tools=[{"type": "function", "function": function}])
    one, two = front.generator.requests
    assert one.ids == two.ids


async def test_an_answer_that_the_limit_cut(qwen: Tokenizer) -> None:
    front = door(qwen, "hello world and")
    answer = await create(front, max_output_tokens=2)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    events = await stream(front, max_output_tokens=2)
    assert events[-1]["type"] == "response.incomplete"
    assert plain(events[-1]["response"]) == plain(answer)


async def test_a_failure_after_the_first_event(tokenizer: Tokenizer) -> None:
    front = Door(tokenizer)
    wire = Wire(front.app, body(stream=True), PATH)
    (one,) = await front.generator.started()
    one.tokens(tokenizer.encode("hello"))
    await wire.next()
    one.push(Broken(RequestFailed("worker p-1 was lost")))
    await wire.end()
    last = named_events(wire.text)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "request_failed", "message": "worker p-1 was lost"}
    assert (await front.get(f"{PATH}/{last['response']['id']}")).status_code == 404


async def test_an_answer_can_be_fetched_and_forgotten_by_its_tenant_alone(tokenizer: Tokenizer) -> None:
    generator = FakeGenerator(says(*tokenizer.encode("hello")))
    front = Door(tokenizer, generator, keys=read_keys("acme key-of-acme\nother key-of-other"))
    ours, theirs = {"authorization": "Bearer key-of-acme"}, {"authorization": "Bearer key-of-other"}
    answer = (await front.post(PATH, body(), **ours)).json()
    path = f"{PATH}/{answer['id']}"
    assert (await front.get(path, **ours)).json() == answer
    assert (await front.get(path, **theirs)).status_code == 404
    refused = await front.post(PATH, body(previous_response_id=answer["id"]), **theirs)
    assert refused.status_code == 404
    async with front.client(**theirs) as client:
        assert (await client.delete(path)).status_code == 404
    async with front.client(**ours) as client:
        assert (await client.delete(path)).json() == {
            "id": answer["id"],
            "object": "response",
            "deleted": True,
        }
        assert (await client.delete(path)).status_code == 404
    assert (await front.get(path, **ours)).status_code == 404


async def test_one_call_at_most(qwen: Tokenizer) -> None:
    answer = await create(door(qwen, TEXT + CALL), tools=TOOLS, parallel_tool_calls=False)
    assert [item["type"] for item in answer["output"]].count("function_call") == 1
    assert answer["parallel_tool_calls"] is False


USER = {"role": "user", "content": "a"}
ODD = {"type": "object", "not": {"required": ["a"]}}
BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"input": []}, 400, "input"),
    ({"input": ""}, 200, ""),
    ({"input": [5]}, 400, "input[0]"),
    ({"input": [{"role": "king", "content": "a"}]}, 400, "input[0].role"),
    ({"input": [{"role": "user"}]}, 400, "input[0].content"),
    ({"input": [{**USER, "x": 1}]}, 400, "input[0].x"),
    ({"input": [USER, {"type": "item_reference", "id": "a"}]}, 501, "input[1].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 501, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, 400, "input[0].content[0].text"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, 400, "input[0].call_id"),
    ({"input": [{"type": "reasoning", "encrypted_content": "a"}]}, 501, "input[0].encrypted_content"),
    ({"tools": [{"type": "web_search", "search_context_size": "low"}]}, 501, "tools[0].type"),
    ({"tools": [{**TOOLS[0], "strict": True, "parameters": ODD}]}, 400, "tools[0].parameters.not"),
    ({"tools": [{**TOOLS[0], "name": "a b"}]}, 400, "tools[0].name"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "none"}}, 400, "tool_choice"),
    ({"background": True}, 501, "background"),
    ({"conversation": "c"}, 501, "conversation"),
    ({"include": ["reasoning.encrypted_content"]}, 501, "include"),
    ({"reasoning": {"effort": "high"}}, 501, "reasoning.effort"),
    ({"text": {"format": {"type": "json_schema", "schema": ODD}}}, 400, "text.format.schema.not"),
    ({"text": {"format": {"type": "json_schema"}}}, 400, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, 400, "text.format.type"),
    ({"truncation": "auto"}, 501, "truncation"),
    ({"max_output_tokens": 5000}, 400, "max_output_tokens"),
    ({"previous_response_id": "resp_x"}, 404, "previous_response_id"),
    ({"messages": []}, 400, "messages"),
    ({"model": "other"}, 404, "model"),
]


@pytest.mark.parametrize(("fields", "status", "param"), BAD, ids=lambda value: str(value)[:50])
async def test_bad_bodies(qwen: Tokenizer, fields: dict[str, Any], status: int, param: str) -> None:
    front = door(qwen)
    response = await front.post(PATH, body(**fields))
    assert response.status_code == status, response.text
    if status != 200:
        assert response.json()["error"]["param"] == param
        assert param in response.json()["error"]["message"]
        assert not front.generator.streams


async def test_neutral_values_are_taken(qwen: Tokenizer) -> None:
    fields = {
        "background": False,
        "conversation": None,
        "include": [],
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "auto",
        "text": {"format": {"type": "text"}},
        "tools": [{**TOOLS[0], "strict": False}],
        "tool_choice": "auto",
        "truncation": "disabled",
        "top_logprobs": 0,
    }
    await create(door(qwen), **fields)
    await stream(door(qwen), stream_options={"include_obfuscation": False}, **fields)


async def test_the_trace(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    response = await front.post(PATH, body(stream=True), x_pdd_trace="1")
    events = named_events(response.text)
    assert [list(event["pdd"]) for event in events if event["type"].endswith("text.delta")] == [["owner"]]
    assert events[-1]["response"]["pdd"]["pipeline"] == "MD"
    kept = (await front.get(f"{PATH}/{events[-1]['response']['id']}")).json()
    assert "pdd" not in kept


async def test_chats_answers_are_not_kept(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    name = (await front.post("/v1/chat/completions", ask())).json()["id"]
    assert (await front.post(PATH, body(previous_response_id=name))).status_code == 404
