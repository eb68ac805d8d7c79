"""The official clients, unchanged, against the router over real sockets: streams, tools, conversations,
errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, ToolParam
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from openai.types.responses import FunctionToolParam

from services.router.front.keys import read_keys
from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.requests import Broken, GenerationRequest, RequestEvent
from shared.errors import RequestFailed
from shared.runtime.settings import HttpConfig
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import MODEL, Door
from tests.support.live_mesh import live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_shape import Shape
from tests.support.served_front import serving
from tests.support.small_tokenizer import small_tokenizer
from tests.support.tool_templates import QWEN

KEY = "key-of-acme"
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
CALLS = ['{"city": "Paris"}', '{"city": "Rome"}']
WRITTEN = [f'<tool_call>\n{{"name": "get_weather", "arguments": {call}}}\n</tool_call>' for call in CALLS]
TOOLS_TURN = "<think>\nBoth.\n</think>\n\nLet me see.\n" + "\n".join(WRITTEN)
LAST_TURN = "It is cold in Paris 😀."
QUESTION = "How is it in Paris and Rome?"
CHAT_TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": SCHEMA},
}
RESPONSES_TOOL: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "parameters": SCHEMA,
    "strict": False,
}
MESSAGES_TOOL: ToolParam = {"name": "get_weather", "description": "now", "input_schema": SCHEMA}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    marks = [("<tool_call>", False), ("</tool_call>", False)]
    where = Path(tmp_path_factory.mktemp("clients"))
    return small_tokenizer(where / "model", template=QWEN, marks=marks)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return load_tokenizer(model)


def agent(tokenizer: Tokenizer) -> Door:
    """A model that calls two tools, and answers when it has their results."""

    def script(request: GenerationRequest) -> Sequence[RequestEvent]:
        told = "<tool_response>" in tokenizer.decode(request.ids)
        return says(*tokenizer.encode(LAST_TURN if told else TOOLS_TURN), runs=3, cached=9)(request)

    return Door(tokenizer, FakeGenerator(script), keys=read_keys(f"acme {KEY}"))


def check_turns(door: Door) -> None:
    """The second prompt goes on from the first one and what was drawn after it, id by id."""
    one, two = door.generator.requests[-2:]
    log = [*one.ids, *door.tokenizer.encode(TOOLS_TURN), 2]
    assert two.ids[: len(log)] == log


@contextlib.asynccontextmanager
async def openai_client(port: int, key: str = KEY) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        yield client


@contextlib.asynccontextmanager
async def anthropic_client(port: int, key: str = KEY) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = f"http://127.0.0.1:{port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
        yield client


async def test_openai_chat_with_tools(tokenizer: Tokenizer) -> None:
    door = agent(tokenizer)
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    async with serving(door) as port, openai_client(port) as client:
        async with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[CHAT_TOOL], stream_options={"include_usage": True}
        ) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_completion()
        whole = await client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
        for completion in (streamed, whole):
            message = completion.choices[0].message
            assert completion.choices[0].finish_reason == "tool_calls"
            assert message.content == "Let me see."
            assert (message.model_extra or {})["reasoning_content"] == "Both."
            calls = message.tool_calls or []
            assert [call.function.arguments for call in calls if call.type == "function"] == CALLS
            assert completion.usage is not None
            assert completion.usage.prompt_tokens_details is not None
            assert completion.usage.prompt_tokens_details.cached_tokens == 9
        back: Any = whole.choices[0].message.model_dump(exclude_none=True)
        messages.append(back)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "cold"}
            for call in whole.choices[0].message.tool_calls or []
        ]
        last = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=[CHAT_TOOL], tool_choice="auto", parallel_tool_calls=True
        )
        assert last.choices[0].message.content == LAST_TURN
        check_turns(door)


async def test_openai_responses_with_tools(tokenizer: Tokenizer) -> None:
    door = agent(tokenizer)
    async with serving(door) as port, openai_client(port) as client:
        async with client.responses.stream(
            model=MODEL, input=QUESTION, tools=[RESPONSES_TOOL], instructions="Be brief."
        ) as stream:
            kinds = [event.type async for event in stream]
            first = await stream.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert [item.type for item in first.output] == ["reasoning", "message", *["function_call"] * 2]
        assert first.output_text == "Let me see."
        assert [item.arguments for item in first.output if item.type == "function_call"] == CALLS
        assert first.usage is not None
        assert first.usage.input_tokens_details.cached_tokens == 9
        results: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "cold"}
            for item in first.output
            if item.type == "function_call"
        ]
        last = await client.responses.create(
            model=MODEL,
            input=results,
            tools=[RESPONSES_TOOL],
            instructions="Be brief.",
            previous_response_id=first.id,
        )
        assert last.output_text == LAST_TURN
        check_turns(door)
        assert (await client.responses.retrieve(last.id)).output_text == LAST_TURN
        await client.responses.delete(last.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(last.id)
        items: Any = [{"role": "user", "content": QUESTION}]
        items += [item.model_dump(exclude_none=True) for item in first.output]
        stateless = await client.responses.create(
            model=MODEL, input=items + results, tools=[RESPONSES_TOOL], instructions="Be brief.", store=False
        )
        assert stateless.output_text == LAST_TURN
        assert door.generator.requests[-1].ids == door.generator.requests[-2].ids


async def test_anthropic_messages_with_tools(tokenizer: Tokenizer) -> None:
    door = agent(tokenizer)
    messages: list[MessageParam] = [{"role": "user", "content": QUESTION}]
    async with serving(door) as port, anthropic_client(port) as client:
        counted = await client.messages.count_tokens(model=MODEL, messages=messages, tools=[MESSAGES_TOOL])
        async with client.messages.stream(
            model=MODEL, max_tokens=500, messages=messages, tools=[MESSAGES_TOOL]
        ) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_message()
        whole = await client.messages.create(
            model=MODEL, max_tokens=500, messages=messages, tools=[MESSAGES_TOOL]
        )
        for message in (streamed, whole):
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
            uses = [block for block in message.content if block.type == "tool_use"]
            assert [block.input for block in uses] == [json.loads(call) for call in CALLS]
            assert message.stop_reason == "tool_use"
            assert message.usage.cache_read_input_tokens == 9
            assert message.usage.input_tokens + 9 == counted.input_tokens
        messages.append(whole.to_param())
        uses = [block for block in whole.content if block.type == "tool_use"]
        results: Any = [{"type": "tool_result", "tool_use_id": block.id, "content": "cold"} for block in uses]
        messages.append({"role": "user", "content": results})
        last = await client.messages.create(
            model=MODEL,
            max_tokens=500,
            messages=messages,
            tools=[MESSAGES_TOOL],
            system=[{"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}],
        )
        (block,) = last.content
        assert block.type == "text"
        assert block.text == LAST_TURN
        assert last.stop_reason == "end_turn"
        check_turns(door)


async def test_anthropic_errors(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, keys=read_keys(f"acme {KEY}"), http=HttpConfig(keep_alive=0.01))
    question: list[MessageParam] = [{"role": "user", "content": QUESTION}]
    async with serving(door) as port:
        async with anthropic_client(port, "nobody-knows-it") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(model=MODEL, max_tokens=5, messages=question)
        async with anthropic_client(port) as client:
            with pytest.raises(anthropic.BadRequestError, match="temperature"):
                await client.messages.create(
                    model=MODEL, max_tokens=5, messages=question, extra_body={"temperature": -1}
                )
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(model="other", max_tokens=5, messages=question)
            asked = asyncio.ensure_future(
                client.messages.create(model=MODEL, max_tokens=5, messages=question, stream=True)
            )
            (stream,) = await door.generator.started()
            events = await asked  # headers come with the first ping, while nothing is drawn
            stream.tokens([40])
            stream.push(Broken(RequestFailed("worker p-1 was lost")))
            with pytest.raises(anthropic.APIError, match="p-1 was lost"):
                async for _ in events:
                    pass


async def test_all_of_them_over_a_mesh(model: Path) -> None:
    """The same conversation by each road has the same prompt, so a mesh draws the same answer to each."""
    async with live_mesh(SyntheticModel(model), Shape()) as mesh:
        port = int(mesh.config.node("router-0").http.rpartition(":")[2])
        async with openai_client(port) as one, anthropic_client(port) as two:
            chat = await one.chat.completions.create(
                model="synthetic",
                messages=[{"role": "user", "content": QUESTION}],
                max_tokens=40,
                temperature=0,
            )
            async with one.responses.stream(
                model="synthetic", input=QUESTION, max_output_tokens=40, temperature=0
            ) as stream:
                answer = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            async with two.messages.stream(
                model="synthetic",
                messages=[{"role": "user", "content": QUESTION}],
                max_tokens=40,
                extra_body={"temperature": 0},
            ) as spoken:
                text = "".join([text async for text in spoken.text_stream])
                final = await spoken.get_final_message()
            assert chat.choices[0].message.content == "".join(answer) == text
            assert chat.usage is not None
            assert final.usage.output_tokens == chat.usage.completion_tokens == 40
            assert final.usage.cache_read_input_tokens
