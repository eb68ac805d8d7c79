"""Bodies of answers and events of a stream in Anthropic's shapes. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

EMPTY = Raw(b"{}")


class TextOut(Struct):
    text: str
    type: str = "text"


class ThinkingOut(Struct):
    thinking: str
    signature: str = ""
    type: str = "thinking"


class ToolUseOut(Struct):
    id: str
    name: str
    input: Raw
    type: str = "tool_use"


BlockOut = TextOut | ThinkingOut | ToolUseOut


class OutputDetails(Struct):
    thinking_tokens: int


class UsageOut(Struct, kw_only=True):
    """`input_tokens` are those that no cache held: with `cache_read_input_tokens` they are the whole
    prompt."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails | UnsetType = UNSET


class MessageOut(Struct, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[BlockOut]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: UsageOut
    pdd: Mapping[str, Any] | UnsetType = UNSET


class TokenCount(Struct):
    input_tokens: int


class MessageStart(Struct):
    message: MessageOut
    type: str = "message_start"


class BlockStart(Struct):
    index: int
    content_block: BlockOut
    type: str = "content_block_start"


class TextDelta(Struct):
    text: str
    type: str = "text_delta"


class ThinkingDelta(Struct):
    thinking: str
    type: str = "thinking_delta"


class InputDelta(Struct):
    partial_json: str
    type: str = "input_json_delta"


class BlockDelta(Struct):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta
    type: str = "content_block_delta"
    pdd: Mapping[str, Any] | UnsetType = UNSET


class BlockStop(Struct):
    index: int
    type: str = "content_block_stop"


class Stopped(Struct):
    stop_reason: str
    stop_sequence: str | None


class MessageDelta(Struct):
    delta: Stopped
    usage: UsageOut
    type: str = "message_delta"
    pdd: Mapping[str, Any] | UnsetType = UNSET


class MessageStop(Struct):
    type: str = "message_stop"
