"""What those fields of bodies may be that are kept as raw JSON until it is known what they are: what is not
served, and parts that are read by their `type`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from services.router.front import conversation, openai, unbuilt
from services.router.front.messages import answers, turns
from services.router.front.messages import bodies as messages
from services.router.front.openapi.schemas import Schema
from services.router.front.responses import bodies as responses
from services.router.front.responses import items
from services.router.front.structure import form

ANYTHING: Schema = {}
OBJECT: Schema = {"type": "object"}
_TABLES: tuple[tuple[type[Struct], Mapping[str, tuple[Any, ...]]], ...] = (
    (openai.Ask, unbuilt.PARAMETERS),
    (openai.ChatAsk, unbuilt.PARAMETERS),
    (openai.CompletionAsk, unbuilt.PARAMETERS),
    (openai.StreamOptions, unbuilt.STREAM_OPTIONS),
    (openai.ChatMessage, unbuilt.MESSAGE),
    (openai.Part, unbuilt.PART),
    (openai.Tool, unbuilt.TOOL),
    (openai.Call, unbuilt.TOOL),
    (messages.CountAsk, turns.BODY),
    (messages.MessagesAsk, turns.BODY),
    (messages.Block, turns.BLOCK),
    (messages.Tool, turns.TOOL),
    (responses.ResponsesAsk, items.BODY),
    (responses.TextOptions, items.TEXT),
    (responses.ReasoningOptions, items.REASONING),
    (responses.StreamOptions, items.STREAM),
    (responses.Part, items.PART),
    (responses.CallItem, items.CALL),
    (responses.OutputItem, items.CALL),
    (responses.ReasoningItem, items.THOUGHT),
    (responses.FunctionTool, items.TOOL),
    (form.Structured, form.UNSERVED),
)
_NOT_SERVED = tuple(
    (kind, name)
    for kind, names in (
        (messages.Thinking, ("budget_tokens",)),
        (messages.OutputConfig, ("effort",)),
        (form.Format, ("format",)),
    )
    for name in names
)
_READ_LATER: Mapping[tuple[type[Struct], str], Any] = {
    (openai.Ask, "response_format"): form.Format | None,
    (openai.Ask, "structured_outputs"): form.Structured | None,
    (openai.Ask, "guided_choice"): form.Choices | None,
    (openai.Ask, "guided_grammar"): form.Text | None,
    (openai.Ask, "guided_json"): form.Schema | str | None,
    (openai.Ask, "guided_regex"): form.Text | None,
    (openai.Ask, "best_of"): int | None,
    (answers.ToolUseOut, "input"): OBJECT,
    (messages.CountAsk, "tools"): messages.Tool,
    (messages.CountAsk, "cache_control"): ANYTHING,
    (messages.CountAsk, "output_format"): form.TextFormat | None,
    (messages.OutputConfig, "format"): form.TextFormat | None,
    (messages.Block, "cache_control"): ANYTHING,
    (messages.Tool, "cache_control"): ANYTHING,
    (responses.TextOptions, "format"): form.TextFormat | None,
    (responses.ResponsesAsk, "input"): (
        responses.MessageItem,
        responses.CallItem,
        responses.OutputItem,
        responses.ReasoningItem,
    ),
    (responses.ResponsesAsk, "tools"): responses.FunctionTool,
}


MODELS: tuple[tuple[type[Struct], str], ...] = (
    (openai.Ask, "model"),
    (openai.TokenizeAsk, "model"),
    (openai.DetokenizeAsk, "model"),
    (messages.CountAsk, "model"),
    (responses.ResponsesAsk, "model"),
)
"""Fields that name a model."""

WORDS: dict[tuple[type[Struct], str], tuple[str | None, ...]] = {
    (openai.ChatMessage, "role"): tuple(conversation.ROLES),
    (openai.Part, "type"): ("text",),
    (openai.Tool, "type"): ("function",),
    (openai.Call, "type"): ("function",),
    (form.Format, "type"): ("text", "json_object", "json_schema", "structural_tag"),
    (form.TextFormat, "type"): ("text", "json_object", "json_schema"),
    (messages.Turn, "role"): ("user", "assistant", "system"),
    (messages.Block, "type"): turns.SERVED,
    (messages.ToolChoice, "type"): ("auto", "any", "tool", "none"),
    (messages.Thinking, "type"): ("adaptive", "disabled"),
    (responses.Part, "type"): (*items.TEXTS, "reasoning_text"),
    (responses.MessageItem, "type"): ("message",),
    (responses.MessageItem, "role"): ("user", "assistant", "system", "developer"),
    (responses.CallItem, "type"): ("function_call",),
    (responses.OutputItem, "type"): ("function_call_output",),
    (responses.ReasoningItem, "type"): ("reasoning",),
    (responses.FunctionTool, "type"): ("function",),
}
"""The words that text fields may be, where any other is refused after the body was read."""


def holes() -> dict[tuple[type[Struct], str], Any]:
    """All of them, by Struct and field."""
    return dict(_unserved()) | dict(_READ_LATER)


def _unserved() -> Iterator[tuple[tuple[type[Struct], str], Schema]]:
    for kind, table in _TABLES:
        for name, neutral in table.items():
            yield (kind, name), unserved(neutral)
    for place in _NOT_SERVED:
        yield place, unserved(())
    yield (openai.ChatAsk, "echo"), unserved((False,))
    yield (messages.Thinking, "display"), unserved(("summarized",))


def unserved(neutral: tuple[Any, ...]) -> Schema:
    """What may be sent for something that is not served: what means the same as leaving it out."""
    return {"enum": [None, *neutral], "description": "Not served: any other value is answered with 501."}
