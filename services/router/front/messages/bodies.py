"""Bodies of /v1/messages requests as Structs. A field is served, listed as unserved in `turns`, or refused as
unknown."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from services.router.front.openai import NULL, Count, Int32, Name, StopText, ToolName, TopK


class Block(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a turn: `text`, `thinking`, `tool_use` or `tool_result`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: Name | None = None
    name: ToolName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Name | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    cache_control: Raw = NULL
    """Accepted: every prompt's prefix is cached, marked or not."""
    caller: Raw = NULL
    citations: Raw = NULL
    context: Raw = NULL
    data: Raw = NULL
    source: Raw = NULL
    title: Raw = NULL
    toolset_name: Raw = NULL


class Turn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: str
    content: str | list[Block]


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: Raw = NULL
    """Accepted, as a block's."""
    allowed_callers: Raw = NULL
    defer_loading: Raw = NULL
    eager_input_streaming: Raw = NULL
    input_examples: Raw = NULL
    strict: bool | None = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: str
    budget_tokens: Raw = NULL
    display: Raw = NULL


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Raw = NULL
    effort: Raw = NULL


class Metadata(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    user_id: Name | None = None


class CountAsk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of /v1/messages/count_tokens; and what every message's body has."""

    messages: Annotated[list[Turn], Meta(min_length=1)]
    model: str | None = None
    system: str | list[Block] | None = None
    thinking: Thinking | None = None
    tool_choice: ToolChoice | None = None
    tools: Annotated[list[Raw], Meta(max_length=512)] | None = None
    """Each a `Tool`; those of other types have other fields."""
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: Raw = NULL
    """Accepted, as a block's."""
    context_management: Raw = NULL
    mcp_servers: Raw = NULL
    output_config: OutputConfig | None = None
    output_format: Raw = NULL


class MessagesAsk(CountAsk, forbid_unknown_fields=True, kw_only=True):
    """Body of /v1/messages."""

    max_tokens: Count
    metadata: Metadata | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: TopK | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    priority: Int32 | None = None
    seed: Annotated[int, Meta(ge=-(2**63))] | None = None
    timeout: Annotated[float, Meta(gt=0, le=86400)] | None = None
    container: Raw = NULL
    diagnostics: Raw = NULL
    inference_geo: Raw = NULL
    service_tier: Raw = NULL
    speed: Raw = NULL
