"""What clients of this API may ask for and this service does not serve: refused by name, never ignored.

Each parameter has its neutral values: those that mean the same as leaving it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from services.router.front.openai import NULL, Ask, ChatMessage, Part
from shared.errors import NotBuilt

PARAMETERS: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "function_call": (),
    "functions": ([],),
    "include_reasoning": (True,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "metadata": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_retention": (),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
STREAM_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "include_obfuscation": (False,),
}
MESSAGE: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": ("",),
}
PART: Mapping[str, tuple[Any, ...]] = {
    "audio_url": (),
    "file": (),
    "image_url": (),
    "input_audio": (),
    "refusal": (),
    "video_url": (),
}
TOOL: Mapping[str, tuple[Any, ...]] = {"custom": ()}
ENDPOINTS = (
    "/v1/assistants",
    "/v1/audio",
    "/v1/batches",
    "/v1/conversations",
    "/v1/embeddings",
    "/v1/files",
    "/v1/fine_tuning",
    "/v1/images",
    "/v1/messages/batches",
    "/v1/moderations",
    "/v1/realtime",
    "/v1/rerank",
    "/v1/score",
    "/v1/threads",
    "/v1/uploads",
    "/v1/vector_stores",
    "/v1/videos",
    "/classify",
    "/embeddings",
    "/generate",
    "/inference",
    "/invocations",
    "/pooling",
    "/rerank",
    "/score",
)
"""Endpoints that clients know from elsewhere: 501 under each, where any other unknown path is 404."""


def refuse_unbuilt(ask: Ask) -> None:
    """Raise NotBuilt for the first parameter that asks for something unserved."""
    refuse(ask, PARAMETERS, "")
    _refuse_best_of(ask)
    echo = getattr(ask, "echo", NULL)
    if isinstance(echo, msgspec.Raw):
        refuse(ask, {"echo": (False,)}, "")
    if ask.stream_options is not None:
        refuse(ask.stream_options, STREAM_OPTIONS, "stream_options.")


def refuse_message(message: ChatMessage, path: str) -> None:
    """The same for a message; `path` is its place in the body, with a dot."""
    refuse(message, MESSAGE, path)


def refuse_part(part: Part, path: str) -> None:
    """The same for a part of a message's content."""
    if part.type != "text":
        raise NotBuilt(f"{path}type: {part.type!r} is not served here; send text", f"{path}type")
    refuse(part, PART, path)


def refuse(holder: msgspec.Struct, table: Mapping[str, tuple[Any, ...]], path: str) -> None:
    """Raise NotBuilt for the first field of `table` that is neither left out nor neutral."""
    for name, neutral in table.items():
        raw = getattr(holder, name, NULL)
        if raw is not NULL and _asks(raw, neutral):
            advice = "".join(f", or send {msgspec.json.encode(value).decode()}" for value in neutral)
            raise NotBuilt(f"{path}{name}: not served here; leave it out{advice}", f"{path}{name}")


def _refuse_best_of(ask: Ask) -> None:
    count = ask.n or 1
    if _asks(ask.best_of, (count,)):
        raise NotBuilt(f"best_of: only the value of n ({count}) is served here; leave it out", "best_of")


def _asks(raw: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    """Whether a raw value is anything but null and the neutral ones."""
    if len(raw) > 64:  # no neutral value is that long
        return True
    try:
        value = msgspec.json.decode(raw)
    except msgspec.MsgspecError:  # a number out of range, no UTF-8: nobody has looked before
        return True
    return value is not None and not any(value == one and type(value) is type(one) for one in neutral)
