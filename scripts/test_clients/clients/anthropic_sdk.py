"""The official anthropic package, as coding agents use it. Runs in an environment of its own:
`python anthropic_sdk.py BASE_URL MODEL`."""

from __future__ import annotations

import sys

import anthropic
from anthropic import Anthropic
from anthropic.types import MessageParam, TextBlockParam, ToolParam

WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather in a city now",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SYSTEM: list[TextBlockParam] = [
    {"type": "text", "text": "You are a helpful agent. Be brief.", "cache_control": {"type": "ephemeral"}}
]


def main(url: str, model: str) -> None:
    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    conversation(client, model)
    streamed(client, model)
    tools(client, model)
    errors(client, model)
    print("all done")


def conversation(client: Anthropic, model: str) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
    counted = client.messages.count_tokens(model=model, messages=messages, system=SYSTEM)
    said("messages.count_tokens", str(counted.input_tokens))
    for question in ("And of Italy?", "And of Spain?"):
        answer = client.messages.create(
            model=model,
            max_tokens=24,
            messages=messages,
            system=SYSTEM,
            extra_body={"temperature": 0},
            metadata={"user_id": "somebody"},
        )
        block = answer.content[0]
        assert block.type == "text"
        assert answer.usage.output_tokens <= 24
        said("messages.create", block.text)
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": question}]
    assert client.models.list().data[0].id == model
    said("models.list", model)


def streamed(client: Anthropic, model: str) -> None:
    with client.messages.stream(
        model=model,
        max_tokens=24,
        messages=[{"role": "user", "content": "Count to five."}],
        stop_sequences=["six"],
        extra_body={"top_p": 0.9, "top_k": 40},
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.stop_reason in ("end_turn", "max_tokens", "stop_sequence"), final
    said("messages.stream", f"{text!r}, {final.stop_reason}, {final.usage.output_tokens} tokens")


def tools(client: Anthropic, model: str) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "How is the weather in Paris? Use the tool."}]
    with client.messages.stream(
        model=model,
        max_tokens=64,
        messages=messages,
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "get_weather"},
        extra_body={"temperature": 0},
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_message()
    uses = [block for block in answer.content if block.type == "tool_use"]
    assert len(uses) == 1, answer
    assert answer.stop_reason == "tool_use", answer
    assert "input_json" in kinds, kinds
    messages += [
        {"role": "assistant", "content": answer.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": uses[0].id, "content": "12 degrees"}],
        },
    ]
    last = client.messages.create(model=model, max_tokens=24, messages=messages, tools=[WEATHER])
    assert last.stop_reason
    said("messages.stream, tools", str(uses[0].input))


def errors(client: Anthropic, model: str) -> None:
    try:
        client.messages.create(model="nobody", max_tokens=8, messages=[{"role": "user", "content": "x"}])
    except anthropic.NotFoundError as error:
        said("NotFoundError", str(error.body))
    else:
        raise AssertionError("an unknown model was served")
    try:
        client.messages.create(model=model, max_tokens=8, messages=[])
    except anthropic.BadRequestError as error:
        said("BadRequestError", str(error.body))
    else:
        raise AssertionError("a request without messages was served")


def said(what: str, told: str) -> None:
    print(f"{what}: {told[:160]}")


if __name__ == "__main__":
    print(f"anthropic {anthropic.__version__}")
    main(sys.argv[1], sys.argv[2])
