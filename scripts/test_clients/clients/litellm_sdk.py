"""litellm, which many gateways and agents are made of. Runs in an environment of its own:
`python litellm_sdk.py BASE_URL MODEL`."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import sys
from typing import Any

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def main(url: str, model: str) -> None:
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    for provider in ("openai", "hosted_vllm"):
        known = {"model": f"{provider}/{model}", "api_base": f"{url}/v1", "api_key": "none"}
        chat(litellm, known)
        tools(litellm, known)
    text(litellm, {"model": f"text-completion-openai/{model}", "api_base": f"{url}/v1", "api_key": "none"})
    agent(litellm, {"model": f"anthropic/{model}", "api_base": url, "api_key": "none"})
    errors(litellm, url)
    asyncio.run(at_once(litellm, {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}))
    print("all done")


def chat(litellm: Any, known: dict[str, str]) -> None:
    answer = litellm.completion(**known, messages=MESSAGES, max_tokens=16, temperature=0, seed=3)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 16
    said(f"completion, {known['model']}", answer.choices[0].message.content)
    chunks = list(
        litellm.completion(
            **known, messages=MESSAGES, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
    )
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content
    assert built.usage.completion_tokens
    tokens = built.usage.completion_tokens
    said(f"completion, stream, {known['model']}", f"{len(chunks)} chunks, {tokens} tokens")


def tools(litellm: Any, known: dict[str, str]) -> None:
    answer = litellm.completion(
        **known,
        messages=[{"role": "user", "content": "How is the weather in Paris? Use the tool."}],
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=64,
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls, answer
    said(f"completion, tools, {known['model']}", calls[0].function.arguments)


def text(litellm: Any, known: dict[str, str]) -> None:
    answer = litellm.text_completion(**known, prompt="The sea is", max_tokens=8)
    said("text_completion", answer.choices[0].text)


def agent(litellm: Any, known: dict[str, str]) -> None:
    answer = litellm.completion(**known, messages=MESSAGES, max_tokens=16)
    assert answer.choices[0].message.content
    said("completion, anthropic", answer.choices[0].message.content)
    chunks = list(litellm.completion(**known, messages=MESSAGES, max_tokens=16, stream=True))
    said("completion, stream, anthropic", f"{len(chunks)} chunks")


def errors(litellm: Any, url: str) -> None:
    try:
        litellm.completion(
            model="openai/nobody", api_base=f"{url}/v1", api_key="none", messages=MESSAGES, max_retries=0
        )
    except litellm.NotFoundError as error:
        said("NotFoundError", str(error))
    else:
        raise AssertionError("an unknown model was served")


async def at_once(litellm: Any, known: dict[str, str]) -> None:
    asked = [litellm.acompletion(**known, messages=MESSAGES, max_tokens=8) for _ in range(4)]
    answers = await asyncio.gather(*asked)
    said("acompletion, 4 at once", f"{len(answers)} answers")


def said(what: str, told: str) -> None:
    print(f"{what}: {told[:160]}")


if __name__ == "__main__":
    print(f"litellm {importlib.metadata.version('litellm')}")
    main(sys.argv[1], sys.argv[2])
