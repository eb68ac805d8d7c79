"""A /v1/responses body's items and tools into a chat's messages and tools. Pure; refuses by place.

An answer's items - a thought, words, calls - are one message of the assistant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.router.front import openai
from services.router.front.conversation import join_words
from services.router.front.openai import ChatAsk, ChatMessage
from services.router.front.responses.bodies import (
    CallItem,
    FunctionTool,
    MessageItem,
    OutputItem,
    Part,
    ReasoningItem,
    ResponsesAsk,
)
from services.router.front.unbuilt import refuse
from shared.errors import InvalidRequest, NotBuilt

BODY: Mapping[str, tuple[Any, ...]] = {
    "access_programs": ({},),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "include": ([],),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
TEXT: Mapping[str, tuple[Any, ...]] = {"verbosity": ()}
REASONING: Mapping[str, tuple[Any, ...]] = {"effort": (), "generate_summary": (), "summary": ()}
STREAM: Mapping[str, tuple[Any, ...]] = {"include_obfuscation": (False,)}
PART: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "detail": (),
    "file_data": (),
    "file_id": (),
    "file_url": (),
    "filename": (),
    "image_url": (),
    "input_audio": (),
    "refusal": (),
    "logprobs": ([],),
    "prompt_cache_breakpoint": ({"mode": "explicit"},),
}
CALL: Mapping[str, tuple[Any, ...]] = {"caller": ({"type": "direct"},), "namespace": ()}
THOUGHT: Mapping[str, tuple[Any, ...]] = {"encrypted_content": (), "summary": ([],)}
TOOL: Mapping[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "output_schema": (),
}
TEXTS = ("input_text", "output_text", "text")


def chat_of(body: ResponsesAsk, before: Sequence[ChatMessage]) -> tuple[ChatAsk, list[ChatMessage]]:
    """(the chat that a body asks for, its conversation without the instructions). `before`: the conversation
    that it goes on from. Raises InvalidRequest, NotBuilt by place."""
    refuse(body, BODY, "")
    for part, table, path in (
        (body.text, TEXT, "text."),
        (body.reasoning, REASONING, "reasoning."),
        (body.stream_options, STREAM, "stream_options."),
    ):
        if part is not None:
            refuse(part, table, path)
    conversation = [*before, *_messages(body.input)]
    told = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    ask = ChatAsk(
        model=body.model,
        messages=told + conversation,
        tools=read_functions(body),
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        max_completion_tokens=body.max_output_tokens,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        cache_salt=body.cache_salt,
        priority=body.priority,
        timeout=body.timeout,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return ask, conversation


def read_functions(body: ResponsesAsk) -> list[openai.Tool]:
    """The tools that are offered."""
    return [_tool(bytes(raw), f"tools[{at}]") for at, raw in enumerate(body.tools or ())]


def _tool(raw: bytes, path: str) -> openai.Tool:
    kind = openai.read(raw, openai.Kind, path).type
    if kind != "function":
        raise NotBuilt(f"{path}.type: {str(kind)[:80]!r} is not served here; offer functions", f"{path}.type")
    tool = openai.read(raw, FunctionTool, path)
    refuse(tool, TOOL, f"{path}.")
    function = openai.Function(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return openai.Tool(type="function", function=function)


def _messages(given: str | list[Any]) -> list[ChatMessage]:
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    reader = _Items()
    for at, raw in enumerate(given):
        reader.add(bytes(raw), f"input[{at}]")
    reader.close()
    return reader.made


class _Items:
    """Puts items together to messages."""

    def __init__(self) -> None:
        self.made: list[ChatMessage] = []
        self._clear()

    def add(self, raw: bytes, path: str) -> None:
        kind = openai.read(raw, openai.Kind, path).type or "message"
        if kind == "message":
            self._message(openai.read(raw, MessageItem, path), path)
        elif kind == "reasoning":
            self._thought(openai.read(raw, ReasoningItem, path), path)
        elif kind == "function_call":
            self._call(openai.read(raw, CallItem, path), path)
        elif kind == "function_call_output":
            item = openai.read(raw, OutputItem, path)
            refuse(item, CALL, f"{path}.")
            self.close()
            text = _text(item.output, f"{path}.output")
            self.made.append(ChatMessage(role="tool", content=text, tool_call_id=item.call_id))
        else:
            raise NotBuilt(
                f"{path}.type: {kind[:80]!r} is not served here; send messages, function calls and their "
                "outputs",
                f"{path}.type",
            )

    def close(self) -> None:
        """The assistant's turn, if one is open, is over."""
        if self._thoughts or self._words or self._calls:
            self.made.append(
                ChatMessage(
                    role="assistant",
                    content=join_words(self._words),
                    reasoning_content="\n".join(self._thoughts) or None,
                    tool_calls=self._calls or None,
                )
            )
        self._clear()

    def _message(self, item: MessageItem, path: str) -> None:
        text = _text(item.content, f"{path}.content")
        if item.role == "assistant":
            self._words.append(text)
            return
        if item.role not in ("user", "system", "developer"):
            raise InvalidRequest(
                f"{path}.role: {item.role[:80]!r} is not one of user, assistant, system, developer",
                f"{path}.role",
            )
        self.close()
        self.made.append(ChatMessage(role=item.role, content=text))

    def _thought(self, item: ReasoningItem, path: str) -> None:
        refuse(item, THOUGHT, f"{path}.")
        if self._words or self._calls:
            self.close()
        for at, part in enumerate(item.content or ()):
            where = f"{path}.content[{at}]"
            refuse(part, PART, f"{where}.")
            if part.type != "reasoning_text" or part.text is None:
                raise InvalidRequest(
                    f"{where}.type: {part.type[:80]!r} is no reasoning_text", f"{where}.type"
                )
            self._thoughts.append(part.text)

    def _call(self, item: CallItem, path: str) -> None:
        refuse(item, CALL, f"{path}.")
        function = openai.CallFunction(name=item.name, arguments=item.arguments)
        self._calls.append(openai.Call(id=item.call_id, function=function))

    def _clear(self) -> None:
        self._thoughts = list[str]()
        self._words = list[str]()
        self._calls = list[openai.Call]()


def _text(content: str | list[Part], path: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for at, part in enumerate(content):
        where = f"{path}[{at}]"
        if part.type not in TEXTS:
            raise NotBuilt(f"{where}.type: {part.type[:80]!r} is not served here; send text", f"{where}.type")
        refuse(part, PART, f"{where}.")
        if part.text is None:
            raise InvalidRequest(f"{where}.text: required, and not there", f"{where}.text")
        texts.append(part.text)
    return "\n".join(texts)
