"""The official openai package, as its own documentation uses it. Runs in an environment of its own:
`python openai_sdk.py BASE_URL MODEL`."""

from __future__ import annotations

import asyncio
import json
import sys

import openai
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
]


def main(url: str, model: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    models(client, model)
    conversation(client, model)
    streamed(client, model)
    many(client, model)
    tools(client, model)
    structured(client, model)
    completions(client, model)
    responses(client, model)
    errors(client, model)
    asyncio.run(at_once(url, model))
    print("all done")


def models(client: OpenAI, model: str) -> None:
    found = [one.id for one in client.models.list()]
    assert found == [model], found
    assert client.models.retrieve(model).id == model
    said("models.list, models.retrieve", ", ".join(found))


def conversation(client: OpenAI, model: str) -> None:
    messages = list(QUESTION)
    for question in ("And of Italy?", "And of Spain?"):
        answer = client.chat.completions.create(
            model=model, messages=messages, max_completion_tokens=24, temperature=0, seed=1, user="somebody"
        )
        text = answer.choices[0].message.content or ""
        assert text
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 24
        said("chat.completions.create", text)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": question}]


def streamed(client: OpenAI, model: str) -> None:
    text, usage, reason = "", None, None
    with client.chat.completions.create(
        model=model,
        messages=QUESTION,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=16,
        logprobs=True,
        top_logprobs=2,
        stop=["\n\n"],
    ) as chunks:
        for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
    assert usage is not None
    assert reason in ("stop", "length"), reason
    said("chat.completions.create, stream", f"{text!r}, {usage.completion_tokens} tokens, {reason}")
    with client.chat.completions.stream(
        model=model, messages=QUESTION, max_tokens=200, temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content
    said("chat.completions.stream", f"{len(kinds)} events")


def many(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": [{"type": "text", "text": "Name a colour."}]}],
        n=3,
        max_tokens=8,
        temperature=1.2,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"100": -100},
        store=False,
        service_tier="auto",
        parallel_tool_calls=openai.omit,
    )
    assert [one.index for one in answer.choices] == [0, 1, 2]
    said("chat.completions.create, n=3", " | ".join(one.message.content or "" for one in answer.choices))


def tools(client: OpenAI, model: str) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "How is the weather in Paris? Use the tool."}
    ]
    answer = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=64,
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls or []
    assert len(calls) == 1, answer
    assert calls[0].type == "function"
    assert "city" in json.loads(calls[0].function.arguments)
    messages += [
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": calls[0].id,
                    "type": "function",
                    "function": {"name": calls[0].function.name, "arguments": calls[0].function.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": calls[0].id, "content": '{"celsius": 12}'},
    ]
    last = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER], max_tokens=32)
    assert last.choices[0].finish_reason
    said("chat.completions.create, tools", calls[0].function.arguments)


def structured(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "A person, as JSON."}],
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "person",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
                    "required": ["name", "age"],
                    "additionalProperties": False,
                },
            },
        },
        max_tokens=96,
        temperature=0,
    )
    told = json.loads(answer.choices[0].message.content or "")
    assert set(told) == {"name", "age"}
    said("chat.completions.create, json_schema", json.dumps(told))


def completions(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=["The sea is", "One, two,"], max_tokens=8, echo=True, temperature=0
    )
    assert [one.text[:8] for one in answer.choices] == ["The sea ", "One, two"]
    said("completions.create", " | ".join(one.text for one in answer.choices))
    echoed = client.completions.create(model=model, prompt="The sea is", max_tokens=4, logprobs=2, echo=True)
    likely = echoed.choices[0].logprobs
    assert likely is not None
    assert likely.token_logprobs is not None
    assert len(likely.token_logprobs) == 3 + 4  # the prompt's ids, and the answer's
    parts = client.completions.create(model=model, prompt="The sea is", max_tokens=8, stream=True)
    said("completions.create, stream", "".join(part.choices[0].text for part in parts if part.choices))


def responses(client: OpenAI, model: str) -> None:
    first = client.responses.create(
        model=model, input="Say hello.", instructions="Be brief.", max_output_tokens=16
    )
    assert first.output_text
    said("responses.create", first.output_text)
    with client.responses.stream(
        model=model,
        input="What is the capital of France?",
        previous_response_id=first.id,
        temperature=0,
        max_output_tokens=400,
    ) as stream:
        kinds = {event.type for event in stream}
        last = stream.get_final_response()
    assert "response.output_text.delta" in kinds
    assert client.responses.retrieve(last.id).id == last.id
    client.responses.delete(first.id)
    said("responses.stream, retrieve, delete", last.output_text)


def errors(client: OpenAI, model: str) -> None:
    try:
        client.chat.completions.create(model="nobody", messages=QUESTION)
    except openai.NotFoundError as error:
        said("NotFoundError", str(error.body))
    else:
        raise AssertionError("an unknown model was served")
    try:
        client.chat.completions.create(model=model, messages=QUESTION, max_tokens=10_000_000)
    except openai.BadRequestError as error:
        said("BadRequestError", str(error.body))
    else:
        raise AssertionError("an endless answer was promised")


async def at_once(url: str, model: str) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"Say the number {number}."}],
                stream=True,
                max_tokens=8,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        answers = await asyncio.gather(*(one(number) for number in range(8)))
        assert all(answers)
        said("8 streams at once", f"{len(answers)} answers")


def said(what: str, told: str) -> None:
    print(f"{what}: {told[:160]}")


if __name__ == "__main__":
    print(f"openai {openai.__version__}")
    main(sys.argv[1], sys.argv[2])
