"""Bodies of requests in OpenAI's shapes (with vLLM's well-known additions), as Structs, and their decoding.

A field is either served, or listed in `unbuilt` and refused by name; any other is refused as unknown. Nothing
that is accepted is ignored. Knows nothing of tokens, models or HTTP.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw

from shared.errors import InvalidRequest

NULL = Raw(b"null")
FormField = Raw
"""Read by `structure.form`."""
_SHOWN = 80  # characters of a bad value that an error repeats

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Count = Annotated[int, Meta(ge=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Top = Annotated[int, Meta(ge=0, le=20)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]
Name = Annotated[str, Meta(max_length=512)]
ToolName = Annotated[str, Meta(min_length=1, max_length=128)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Raw = NULL


class Ask(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[int, Bias], Meta(max_length=1024)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63))] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=64)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    priority: Int32 | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=86400)] | None = None
    prompt_logprobs: Top | None = None
    # What the answer must look like.
    response_format: FormField = NULL
    structured_outputs: FormField = NULL
    guided_choice: FormField = NULL
    guided_grammar: FormField = NULL
    guided_json: FormField = NULL
    guided_regex: FormField = NULL
    # Known and not served: see `unbuilt`.
    allowed_token_ids: Raw = NULL
    bad_words: Raw = NULL
    best_of: Raw = NULL
    length_penalty: Raw = NULL
    logits_processors: Raw = NULL
    metadata: Raw = NULL
    prompt_cache_retention: Raw = NULL
    return_tokens_as_token_ids: Raw = NULL
    service_tier: Raw = NULL
    spaces_between_special_tokens: Raw = NULL
    store: Raw = NULL
    truncate_prompt_tokens: Raw = NULL
    use_beam_search: Raw = NULL


class Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message's content; only `text` is served."""

    type: str
    text: str | None = None
    audio_url: Raw = NULL
    file: Raw = NULL
    image_url: Raw = NULL
    input_audio: Raw = NULL
    refusal: Raw = NULL
    video_url: Raw = NULL


class Function(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool; only functions are served."""

    type: str
    function: Function | None = None
    custom: Raw = NULL


class CallFunction(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The function of a call; `arguments` is a JSON object as text."""

    name: ToolName
    arguments: str


class Call(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call that an earlier answer made."""

    id: Name
    type: str = "function"
    function: CallFunction | None = None
    index: int | None = None
    custom: Raw = NULL


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: str
    content: str | list[Part] | None = None
    name: Name | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_call_id: Name | None = None
    tool_calls: Annotated[list[Call], Meta(max_length=128)] | None = None
    annotations: Raw = NULL
    audio: Raw = NULL
    function_call: Raw = NULL
    refusal: Raw = NULL


Tools = Annotated[list[Tool], Meta(max_length=512)]


class ChatAsk(Ask, forbid_unknown_fields=True, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: Tools | None = None
    audio: Raw = NULL
    chat_template: Raw = NULL
    documents: Raw = NULL
    echo: Raw = NULL
    function_call: Raw = NULL
    functions: Raw = NULL
    include_reasoning: Raw = NULL
    mm_processor_kwargs: Raw = NULL
    modalities: Raw = NULL
    moderation: Raw = NULL
    prediction: Raw = NULL
    reasoning_effort: Raw = NULL
    verbosity: Raw = NULL
    web_search_options: Raw = NULL


class CompletionAsk(Ask, forbid_unknown_fields=True, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: Top | None = None
    echo: bool | None = None
    prompt_embeds: Raw = NULL
    suffix: Raw = NULL


class TokenizeAsk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of /tokenize: a text, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None


class DetokenizeAsk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[int]


T = TypeVar("T", bound=msgspec.Struct)


def read(body: bytes, kind: type[T], base: str = "") -> T:
    """Decode a body, or the part of one that stands at `base`. Raises InvalidRequest with the parameter's
    path, what was expected and the value."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(body, str(error), base) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is no JSON: {error}; send one JSON object") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is no UTF-8: {error}; send JSON in UTF-8") from error
    except RecursionError as error:
        raise InvalidRequest("the body nests too deeply; send JSON of a few levels") from error


class Kind(msgspec.Struct):
    """What a part of a body says that it is."""

    type: str | None = None


def _invalid(body: bytes, message: str, base: str) -> InvalidRequest:
    """msgspec's `Expected ... - at `$.stop[0]`` with the parameter first and the value last."""
    what, _, where = message.partition(" - at ")
    path = where.rpartition("`$")[2].rstrip("`").lstrip(".")
    whole = ".".join(part for part in (base, path) if part)
    if what.startswith("Object contains unknown field"):
        field = what.split("`")[1]
        param = f"{whole}.{field}" if whole else field
        return InvalidRequest(f"{param}: unknown parameter; leave it out", param)
    if what.startswith("Object missing required field"):
        field = what.split("`")[1]
        param = f"{whole}.{field}" if whole else field
        return InvalidRequest(f"{param}: required, and not there", param)
    if not whole:
        return InvalidRequest(f"the body: {what[:1].lower()}{what[1:]}")
    param = whole.replace("[...]", "")
    return InvalidRequest(f"{param}: {what[:1].lower()}{what[1:]}; got {_value(body, path)}", param)


def _value(body: bytes, path: str) -> str:
    """The value at a path, shortened, for an error."""
    try:
        value: Any = msgspec.json.decode(body)
        for step in path.partition("[...]")[0].replace("]", "").replace("[", ".").split(".") if path else ():
            value = value[int(step)] if isinstance(value, list) else value[step]
        shown = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, RecursionError, LookupError, ValueError, TypeError):
        return "what cannot be shown"
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
