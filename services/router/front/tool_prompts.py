"""Tools in words, for models whose chat template does not write them: who may be called, what was called, and
what came of it. Pure.

SmolLM2's words are those it was trained on; the others' follow their own templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.router.front.habits import Habits
from services.router.front.reading.tagged import CLOSE, OPEN
from services.router.front.template import to_json
from shared.errors import NotBuilt

Messages = list[dict[str, Any]]


def with_tools(habits: Habits, messages: Messages, tools: Sequence[Mapping[str, Any]]) -> Messages:
    """Messages as the model's template can take them. Raises NotBuilt where the model knows no tools."""
    calls = [at for at, one in enumerate(messages) if one["role"] == "tool" or "tool_calls" in one]
    if not tools and not calls:
        return messages
    if habits.format is None:
        where = "tools" if tools else f"messages[{calls[0]}]"
        raise NotBuilt(
            f"{where}: this model's chat template shows no way of calling tools that is known here; leave "
            "tools out, or have http.tool_format set",
            where,
        )
    if habits.takes_tools:
        return _one_call_each(messages) if habits.single_calls else messages
    form = habits.format.name
    told = [_told(message, form) for message in messages]
    return _add_system(told, _PROMPTS[form](tools)) if tools else told


def _one_call_each(messages: Messages) -> Messages:
    """A turn with several calls as turns of one call, each with its result."""
    results = {one["tool_call_id"]: one for one in messages if one["role"] == "tool"}
    moved: set[str] = set()
    made: Messages = []
    for message in messages:
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            if message["role"] != "tool" or message["tool_call_id"] not in moved:
                made.append(message)
            continue
        for at, call in enumerate(calls):
            content = message["content"] if at == 0 else ""
            made.append({**message, "content": content, "tool_calls": [call]})
            if call["id"] in results:
                moved.add(call["id"])
                made.append(results[call["id"]])
    return made


def _told(message: dict[str, Any], form: str) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    calls = _WRITERS[form]([call["function"] for call in message["tool_calls"]])
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    content = message["content"]
    return kept | {"content": f"{content}\n{calls}" if content else calls}


def _add_system(messages: Messages, text: str) -> Messages:
    if messages[0]["role"] == "system":
        first = messages[0] | {"content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _hermes_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(to_json(tool) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        f"{OPEN}{CLOSE} XML tags:\n"
        f'{OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CLOSE}'
    )


def _llama_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n\n".join(to_json(tool, indent=4) for tool in tools)
    return (
        "You have access to the following functions. To call a function, please respond with JSON for a "
        "function call. "
        'Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
        f"value}}. Do not use variables.\n\n{listed}"
    )


def _smollm_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    return (
        "You are an expert in composing functions. You are given a question and a set of possible "
        "functions. \n"
        "Based on the question, you will need to make one or more function/tool calls to achieve the "
        "purpose. \n"
        "If none of the functions can be used, point it out and refuse to answer. \n"
        "If the given question lacks the parameters required by the function, also point it out.\n\n"
        "You have access to the following tools:\n"
        f"<tools>{to_json([tool['function'] for tool in tools])}</tools>\n\n"
        "The output MUST strictly adhere to the following format, and NO other text MUST be included.\n"
        "The example format is as follows. Please make sure the parameter type is correct. If no function "
        "call is needed, please make the tool calls an empty list '[]'.\n"
        f'{OPEN}[\n{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},\n'
        f"... (more tool calls as required)\n]{CLOSE}"
    )


def _object(function: Mapping[str, Any], key: str) -> str:
    return f'{{"name": {json.dumps(function["name"])}, "{key}": {to_json(function["arguments"])}}}'


_PROMPTS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "hermes": _hermes_prompt,
    "llama3_json": _llama_prompt,
    "smollm2": _smollm_prompt,
}
_WRITERS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "hermes": lambda calls: "\n".join(f"{OPEN}\n{_object(call, 'arguments')}\n{CLOSE}" for call in calls),
    "llama3_json": lambda calls: "; ".join(_object(call, "parameters") for call in calls),
    "smollm2": lambda calls: f"{OPEN}[{', '.join(_object(call, 'arguments') for call in calls)}]{CLOSE}",
}
