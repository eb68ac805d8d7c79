"""Bodies of answers in the shapes of OpenAI's Responses. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field


class TextPart(Struct):
    text: str
    type: str = "output_text"
    annotations: list[None] = field(default_factory=list)
    logprobs: list[None] = field(default_factory=list)


class ReasoningPart(Struct):
    text: str
    type: str = "reasoning_text"


class MessageOut(Struct):
    id: str
    content: list[TextPart]
    status: str = "in_progress"
    type: str = "message"
    role: str = "assistant"


class ReasoningOut(Struct):
    id: str
    content: list[ReasoningPart]
    status: str = "in_progress"
    type: str = "reasoning"
    summary: list[None] = field(default_factory=list)


class CallOut(Struct):
    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "in_progress"
    type: str = "function_call"


ItemOut = MessageOut | ReasoningOut | CallOut


class InputDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct):
    reasoning_tokens: int


class UsageOut(Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(Struct):
    reason: str


class Failure(Struct):
    code: str
    message: str


class ResponseOut(Struct, kw_only=True):
    """One answer, as far as it has come."""

    id: str
    object: str = "response"
    created_at: int
    status: str = "in_progress"
    background: bool = False
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: Mapping[str, str]
    model: str
    output: list[ItemOut] = field(default_factory=list)
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: Mapping[str, None]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: Mapping[str, Any]
    tool_choice: str | Mapping[str, Any]
    tools: list[Mapping[str, Any]]
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: UsageOut | None = None
    user: str | None
    pdd: Mapping[str, Any] | UnsetType = UNSET


class Deleted(Struct):
    id: str
    object: str = "response"
    deleted: bool = True
