"""Messages as clients send them into messages as chat templates take them. Pure; refuses by place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from services.router.front.depth import LEVELS, deeper
from services.router.front.openai import Call, ChatMessage, Part
from services.router.front.template import WrittenJson
from services.router.front.unbuilt import TOOL, refuse, refuse_message, refuse_part
from shared.errors import InvalidRequest, NotBuilt

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def read_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as a chat template takes them. Raises InvalidRequest, NotBuilt by place."""
    called: dict[str, str] = {}
    made: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        one = _message(message, f"messages[{at}]")
        for call in one.get("tool_calls", ()):
            called[call["id"]] = call["function"]["name"]
        if one["role"] == "tool" and one["tool_call_id"] in called:
            one.setdefault("name", called[one["tool_call_id"]])
        made.append(one)
    return made


def join_words(texts: Sequence[str]) -> str:
    """One answer's words that stand apart: joined as they are where white space parts them, else by a line
    end."""
    joined = ""
    for text in texts:
        parted = not joined or not text or joined[-1].isspace() or text[0].isspace()
        joined += text if parted else "\n" + text
    return joined


def read_arguments(text: str, path: str) -> WrittenJson:
    """A call's arguments: the object, and the text it came as."""
    if not text.strip():
        return WrittenJson({}, "{}")
    try:
        value = msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"{path}: {text[:80]!r} is no JSON object: {error}", path) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path}: {text[:80]!r} is no JSON object; send one, `{{}}` for none", path)
    if deeper(value, LEVELS):
        raise InvalidRequest(f"{path}: nests deeper than {LEVELS} levels; flatten it", path)
    return WrittenJson(value, text)


def _message(message: ChatMessage, path: str) -> dict[str, Any]:
    role = ROLES.get(message.role)
    if message.role == "function":
        raise NotBuilt(f"{path}.role: 'function' is not served here; send role tool", f"{path}.role")
    if role is None:
        known = ", ".join(ROLES)
        raise InvalidRequest(f"{path}.role: {message.role[:80]!r} is not one of {known}", f"{path}.role")
    refuse_message(message, f"{path}.")
    _check_fields(message, path)
    if message.content is None and not message.tool_calls:
        raise InvalidRequest(f"{path}.content: required, and not there; send a text", f"{path}.content")
    content = "" if message.content is None else _text(message.content, f"{path}.content")
    made: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        made["name"] = message.name
    if role == "tool":
        made["tool_call_id"] = message.tool_call_id
    thought = message.reasoning_content or message.reasoning
    if thought:
        made["reasoning_content"] = thought
    if message.tool_calls:
        calls = message.tool_calls
        made["tool_calls"] = [_call(call, f"{path}.tool_calls[{at}]", at) for at, call in enumerate(calls)]
    return made


def _check_fields(message: ChatMessage, path: str) -> None:
    """Fields that belong to one role stand in no other."""
    if message.role == "tool" and message.tool_call_id is None:
        raise InvalidRequest(
            f"{path}.tool_call_id: required, and not there; name the call this answers",
            f"{path}.tool_call_id",
        )
    wrong = {
        "tool_call_id": message.tool_call_id is not None and message.role != "tool",
        "tool_calls": bool(message.tool_calls) and message.role != "assistant",
        "reasoning_content": bool(message.reasoning_content) and message.role != "assistant",
        "reasoning": bool(message.reasoning) and message.role != "assistant",
    }
    for name, there in wrong.items():
        if there:
            raise InvalidRequest(
                f"{path}.{name}: not for a message of role {message.role!r}; leave it out", f"{path}.{name}"
            )


def _call(call: Call, path: str, at: int) -> dict[str, Any]:
    if call.index not in (None, at):
        raise InvalidRequest(
            f"{path}.index: {call.index} is not this call's place ({at}); send the calls in order, or "
            "leave it out",
            f"{path}.index",
        )
    if call.type != "function" or call.function is None:
        raise NotBuilt(f"{path}.type: {call.type[:80]!r} is not served here; send a function", f"{path}.type")
    refuse(call, TOOL, f"{path}.")
    function = call.function
    arguments = read_arguments(function.arguments, f"{path}.function.arguments")
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": function.name, "arguments": arguments},
    }


def _text(content: str | list[Part], path: str) -> str:
    """The text of a content; parts are joined by line ends, as vLLM does."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for at, part in enumerate(content):
        refuse_part(part, f"{path}[{at}].")
        if part.text is None:
            raise InvalidRequest(f"{path}[{at}].text: required, and not there", f"{path}[{at}].text")
        texts.append(part.text)
    return "\n".join(texts)
