"""Anthropic's turns, blocks and tools into a chat's messages and tools. Pure; refuses by place.

A turn's results come before its words. Turns of the user that follow one another are one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.router.front import openai
from services.router.front.conversation import join_words
from services.router.front.depth import LEVELS, check_depth
from services.router.front.messages.bodies import Block, CountAsk, MessagesAsk, Tool, ToolChoice, Turn
from services.router.front.openai import NULL, ChatAsk, ChatMessage
from services.router.front.structure.form import Form, text_form
from services.router.front.unbuilt import refuse
from shared.errors import InvalidRequest, NotBuilt

BODY: Mapping[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": ({}, {"edits": []}),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
}
BLOCK: Mapping[str, tuple[Any, ...]] = {
    "caller": ({"type": "direct"},),
    "citations": ([],),
    "context": (),
    "data": (),
    "source": (),
    "title": (),
    "toolset_name": (),
}
TOOL: Mapping[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "eager_input_streaming": (False,),
    "input_examples": ([],),
}
SERVED = ("text", "thinking", "tool_use", "tool_result")


def chat_of(body: CountAsk, *, can_choose: bool, thinks: bool) -> ChatAsk:
    """The chat that a body asks for. `thinks`: the model does; `can_choose`: its template can keep it from
    it. Raises InvalidRequest, NotBuilt by place."""
    refuse(body, BODY, "")
    messages = _system(body.system) + _messages(body.messages)
    last = body.messages[-1].role == "assistant"
    if last and messages[-1].tool_calls:
        raise InvalidRequest(
            "messages: the last turn calls tools; send what came of it as tool_result blocks", "messages"
        )
    ask = ChatAsk(
        model=body.model,
        messages=messages,
        tools=[_tool(bytes(tool), f"tools[{at}]") for at, tool in enumerate(body.tools or ())],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=_parallel(body.tool_choice),
        chat_template_kwargs=_options(body, can_choose=can_choose, thinks=thinks),
        continue_final_message=last,
    )
    if isinstance(body, MessagesAsk):
        ask.max_tokens = body.max_tokens
        ask.stop = body.stop_sequences
        ask.stream = body.stream
        ask.temperature, ask.top_p, ask.top_k = body.temperature, body.top_p, body.top_k
        ask.seed, ask.priority, ask.timeout = body.seed, body.priority, body.timeout
        ask.cache_salt = body.cache_salt
        ask.user = body.metadata.user_id if body.metadata is not None else None
    return ask


def _system(system: str | list[Block] | None) -> list[ChatMessage]:
    text = _text(system, "system") if system is not None else ""
    return [ChatMessage(role="system", content=text)] if text else []


def _messages(turns: Sequence[Turn]) -> list[ChatMessage]:
    made: list[ChatMessage] = []
    for at, turn in enumerate(turns):
        path = f"messages[{at}]"
        if turn.role == "assistant":
            made.append(_assistant(turn.content, path))
        elif turn.role == "user":
            _add_user(made, turn.content, path)
        elif turn.role == "system":
            made.append(ChatMessage(role="system", content=_text(turn.content, f"{path}.content")))
        else:
            raise InvalidRequest(
                f"{path}.role: {turn.role[:80]!r} is not one of user, assistant, system", f"{path}.role"
            )
    return made


def _assistant(content: str | list[Block], path: str) -> ChatMessage:
    if isinstance(content, str):
        return ChatMessage(role="assistant", content=content)
    texts, thoughts, calls = list[str](), list[str](), list[openai.Call]()
    for at, block in enumerate(content):
        where = f"{path}.content[{at}]"
        kind = _kind(block, where, ("text", "thinking", "tool_use"))
        if kind == "text":
            texts.append(_there(block.text, f"{where}.text"))
        elif kind == "thinking":
            thoughts.append(_there(block.thinking, f"{where}.thinking"))
        else:
            check_depth(block.input, LEVELS, f"{where}.input")
            arguments = json.dumps(block.input or {}, ensure_ascii=False)
            function = openai.CallFunction(name=_there(block.name, f"{where}.name"), arguments=arguments)
            calls.append(openai.Call(id=_there(block.id, f"{where}.id"), function=function))
    return ChatMessage(
        role="assistant",
        content=join_words(texts),
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _add_user(made: list[ChatMessage], content: str | list[Block], path: str) -> None:
    texts = [content] if isinstance(content, str) else list[str]()
    for at, block in enumerate([] if isinstance(content, str) else content):
        where = f"{path}.content[{at}]"
        if _kind(block, where, ("text", "tool_result")) == "text":
            texts.append(_there(block.text, f"{where}.text"))
            continue
        name = _there(block.tool_use_id, f"{where}.tool_use_id")
        text = _text(block.content, f"{where}.content") if block.content is not None else ""
        text = f"Error: {text}" if block.is_error else text
        made.append(ChatMessage(role="tool", content=text, tool_call_id=name))
    if not texts:
        return
    text = "\n".join(texts)
    before = made[-1] if made else None
    if before is not None and before.role == "user" and isinstance(before.content, str):
        before.content += "\n" + text
    else:
        made.append(ChatMessage(role="user", content=text))


def _text(content: str | list[Block], path: str) -> str:
    """The text of a content that can be nothing else."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for at, block in enumerate(content):
        _kind(block, f"{path}[{at}]", ("text",))
        texts.append(_there(block.text, f"{path}[{at}].text"))
    return "\n".join(texts)


def _kind(block: Block, path: str, allowed: Sequence[str]) -> str:
    if block.type not in SERVED:
        raise NotBuilt(f"{path}.type: {block.type[:80]!r} is not served here; send text", f"{path}.type")
    if block.type not in allowed:
        raise InvalidRequest(
            f"{path}.type: {block.type!r} does not belong here; send {' or '.join(allowed)}", f"{path}.type"
        )
    refuse(block, BLOCK, f"{path}.")
    return block.type


def _there(value: str | None, path: str) -> str:
    if value is None:
        raise InvalidRequest(f"{path}: required, and not there", path)
    return value


def _tool(raw: bytes, path: str) -> openai.Tool:
    kind = openai.read(raw, openai.Kind, path).type
    if kind not in (None, "custom"):
        raise NotBuilt(
            f"{path}.type: {kind[:80]!r} is not served here; offer tools with an input_schema", f"{path}.type"
        )
    tool = openai.read(raw, Tool, path)
    refuse(tool, TOOL, f"{path}.")
    if tool.input_schema is None:
        raise InvalidRequest(f"{path}.input_schema: required, and not there", f"{path}.input_schema")
    function = openai.Function(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return openai.Tool(type="function", function=function)


def _choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    """The choice in chat's words."""
    if choice is None or choice.type in ("auto", "none"):
        return choice.type if choice is not None else None
    if choice.type == "any":
        return "required"
    if choice.type == "tool":
        return {"type": "function", "name": _there(choice.name, "tool_choice.name")}
    raise InvalidRequest(
        f"tool_choice.type: {choice.type[:80]!r} is not one of auto, any, tool, none", "tool_choice.type"
    )


def output_form(body: CountAsk) -> Form | None:
    """What `output_config` or `output_format` says that the answer must look like."""
    config = body.output_config
    inner = config.format if config is not None else NULL
    if config is not None:
        refuse(config, {"effort": ()}, "output_config.")
    first, second = text_form(inner, "output_config.format"), text_form(body.output_format, "output_format")
    if first is not None and second is not None:
        raise InvalidRequest(
            "output_format: cannot go with output_config.format; send one of them", "output_format"
        )
    return first or second


def _parallel(choice: ToolChoice | None) -> bool | None:
    return False if choice is not None and choice.disable_parallel_tool_use else None


def _options(body: CountAsk, *, can_choose: bool, thinks: bool) -> dict[str, Any] | None:
    """The template's options, with what `thinking` says."""
    thinking = body.thinking
    if thinking is None:
        return body.chat_template_kwargs
    refuse(thinking, {"budget_tokens": (), "display": ("summarized",)}, "thinking.")
    if thinking.type not in ("adaptive", "disabled"):
        raise NotBuilt(
            f"thinking.type: {thinking.type[:80]!r} is not served here; send adaptive or disabled",
            "thinking.type",
        )
    if thinking.type == "disabled" and thinks and not can_choose:
        raise NotBuilt(
            "thinking.type: this model's chat template cannot keep it from thinking; send adaptive",
            "thinking.type",
        )
    if not can_choose:
        return body.chat_template_kwargs
    return {**(body.chat_template_kwargs or {}), "enable_thinking": thinking.type == "adaptive"}
