"""Bodies of /v1/responses requests as Structs. A field is served, listed as unserved in `items`, or refused
as unknown.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from services.router.front.openai import NULL, Count, Int32, Name, ToolName, TopK


class TextOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Raw = NULL
    verbosity: Raw = NULL


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    effort: Raw = NULL
    generate_summary: Raw = NULL
    summary: Raw = NULL


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    include_obfuscation: Raw = NULL


class Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of an item's content; only text is served."""

    type: str
    text: str | None = None
    annotations: Raw = NULL
    """Of an answer's text; there are none."""
    logprobs: Raw = NULL
    prompt_cache_breakpoint: Raw = NULL
    detail: Raw = NULL
    file_data: Raw = NULL
    file_id: Raw = NULL
    file_url: Raw = NULL
    filename: Raw = NULL
    image_url: Raw = NULL
    input_audio: Raw = NULL
    refusal: Raw = NULL


class MessageItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: str
    content: str | list[Part]
    type: str = "message"
    id: Name | None = None
    status: str | None = None
    phase: str | None = None


class CallItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call that an earlier answer made."""

    type: str
    call_id: Name
    name: ToolName
    arguments: str
    id: Name | None = None
    status: str | None = None
    caller: Raw = NULL
    namespace: Raw = NULL


class OutputItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What came of a call."""

    type: str
    call_id: Name
    output: str | list[Part]
    id: Name | None = None
    status: str | None = None
    caller: Raw = NULL


class ReasoningItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the model thought before an earlier answer."""

    type: str
    content: list[Part] | None = None
    id: Name | None = None
    status: str | None = None
    encrypted_content: Raw = NULL
    summary: Raw = NULL


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: str
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    allowed_callers: Raw = NULL
    defer_loading: Raw = NULL
    output_schema: Raw = NULL
    strict: bool | None = None


class ResponsesAsk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of /v1/responses."""

    input: str | Annotated[list[Raw], Meta(min_length=1)]
    """A text, or items: each a message, a call, what came of one, or a thought."""
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Count | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: Name | None = None
    prompt_cache_key: Name | None = None
    reasoning: ReasoningOptions | None = None
    safety_identifier: Name | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    text: TextOptions | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: Annotated[list[Raw], Meta(max_length=512)] | None = None
    """Each a `FunctionTool`; those of other types have other fields."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    user: Name | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: Int32 | None = None
    seed: Annotated[int, Meta(ge=-(2**63))] | None = None
    timeout: Annotated[float, Meta(gt=0, le=86400)] | None = None
    top_k: TopK | None = None
    access_programs: Raw = NULL
    background: Raw = NULL
    background_options: Raw = NULL
    context_management: Raw = NULL
    conversation: Raw = NULL
    image: Raw = NULL
    include: Raw = NULL
    max_tool_calls: Raw = NULL
    moderation: Raw = NULL
    prompt: Raw = NULL
    prompt_cache_options: Raw = NULL
    prompt_cache_retention: Raw = NULL
    service_tier: Raw = NULL
    top_logprobs: Raw = NULL
    truncation: Raw = NULL
