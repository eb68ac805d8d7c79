"""/v1/chat/completions: from its body to jobs, and from deltas to its answers. Knows nothing of sockets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from services.router.front.answer import Head, Shape, drawn_by, gather, trace, usage
from services.router.front.choice import Delta, Drawn
from services.router.front.generation import Generation
from services.router.front.logprobs import chat_logprobs
from services.router.front.openai import ChatAsk, ChatMessage, Part
from services.router.front.replies import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessageOut,
    Usage,
)
from services.router.front.template import RESERVED
from services.router.front.unbuilt import refuse_message, refuse_part
from services.router.front.vocabulary import Vocabulary
from shared.errors import InvalidRequest, NotBuilt

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST_LEVELS = 16


def read_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as a chat template takes them: role and text. Raises InvalidRequest, NotBuilt by place."""
    return [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def template_options(options: dict[str, Any] | None) -> dict[str, Any]:
    """`chat_template_kwargs`, checked: none of the template's own names, not too deep."""
    given = options or {}
    taken = RESERVED & given.keys()
    if taken:
        name = min(taken)
        raise InvalidRequest(
            f"chat_template_kwargs.{name}: is set by the service; leave it out",
            f"chat_template_kwargs.{name}",
        )
    if _deeper(given, _MOST_LEVELS):
        raise InvalidRequest(
            f"chat_template_kwargs: nests deeper than {_MOST_LEVELS} levels; flatten it",
            "chat_template_kwargs",
        )
    return given


def chat_max_tokens(ask: ChatAsk) -> tuple[int | None, str]:
    """(tokens of the answer at most, the parameter that says so)."""
    if ask.max_completion_tokens is None:
        return ask.max_tokens, "max_tokens"
    if ask.max_tokens not in (None, ask.max_completion_tokens):
        raise InvalidRequest(
            f"max_tokens: {ask.max_tokens} differs from max_completion_tokens {ask.max_completion_tokens}; "
            "send one of them",
            "max_tokens",
        )
    return ask.max_completion_tokens, "max_completion_tokens"


def chat_top(ask: ChatAsk) -> int:
    """How many log-probabilities are asked for; -1: none."""
    if ask.logprobs:
        return ask.top_logprobs or 0
    if ask.top_logprobs:
        raise InvalidRequest(
            "top_logprobs: needs logprobs to be true; set it, or leave both out", "top_logprobs"
        )
    return -1


def session_of(ask: ChatAsk, messages: Sequence[dict[str, Any]], tenant: str) -> bytes:
    """Names a conversation's kind: the client's cache key, else its system prompt; b"" for none."""
    if ask.prompt_cache_key is not None:
        said = "k" + ask.prompt_cache_key
    elif messages[0]["role"] == "system":
        said = "s" + messages[0]["content"]
    else:
        return b""
    return hashlib.blake2b(f"{tenant}\0{said}".encode(), digest_size=16).digest()


class ChatReply:
    """Answers of one chat request."""

    def __init__(self, head: Head, shape: Shape, generation: Generation, vocabulary: Vocabulary) -> None:
        self._head = head
        self._shape = shape
        self._generation = generation
        self._vocabulary = vocabulary
        self._opened: set[int] = set()

    def chunks(self, deltas: Sequence[Delta]) -> list[Struct]:
        made: list[ChatChunk] = []
        for delta in deltas:
            if delta.index not in self._opened:
                self._opened.add(delta.index)
                made.append(self._chunk(ChatChunkChoice(index=delta.index, delta=ChatDelta("assistant", ""))))
                if self._shape.token_ids:
                    made[-1].prompt_token_ids = self._generation.jobs[delta.index].prompt.ids
            made += self._content(delta)
        if made and self._generation.ended and not self._shape.include_usage:
            made[-1].pdd = trace(self._generation, self._shape)
        return list(made)

    def closing(self) -> list[Struct]:
        if not self._shape.include_usage:
            return []
        last = self._chunk(None)
        last.usage = self._usage()
        last.pdd = trace(self._generation, self._shape)
        return [last]

    def whole(self, deltas: Sequence[Delta]) -> ChatAnswer:
        jobs = self._generation.jobs
        return ChatAnswer(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=[
                ChatChoice(
                    index=one.index,
                    message=ChatMessageOut("".join(one.text)),
                    logprobs=self._logprobs(one.drawn),
                    finish_reason=one.finish,
                    stop_reason=one.stop,
                    token_ids=self._ids(one.drawn),
                )
                for one in gather(deltas, len(jobs))
            ],
            usage=self._usage(),
            prompt_token_ids=jobs[0].prompt.ids if self._shape.token_ids else UNSET,
            pdd=trace(self._generation, self._shape),
        )

    def _content(self, delta: Delta) -> list[ChatChunk]:
        """A chunk with what was gained, if the client sees any of it, and one for the end."""
        choice = ChatChunkChoice(
            index=delta.index,
            delta=ChatDelta(content=delta.text),
            logprobs=self._logprobs(delta.drawn) if delta.drawn else None,
            token_ids=self._ids(delta.drawn) if delta.drawn else UNSET,
        )
        seen = self._shape.logprobs >= 0 or self._shape.token_ids
        made = [self._chunk(choice)] if delta.text or (delta.drawn and seen) else []
        for chunk in made:
            chunk.pdd = drawn_by(delta, self._shape)
        if delta.finish is not None:
            end = ChatChunkChoice(
                index=delta.index,
                delta=ChatDelta(),
                finish_reason=delta.finish.value,
                stop_reason=delta.stop,
            )
            made.append(self._chunk(end))
        return made

    def _chunk(self, choice: ChatChunkChoice | None) -> ChatChunk:
        return ChatChunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=[] if choice is None else [choice],
            usage=None if self._shape.include_usage else UNSET,
        )

    def _usage(self) -> Usage:
        return usage(self._generation, len(self._generation.jobs))

    def _logprobs(self, drawn: Sequence[Drawn]) -> ChatLogprobs | None:
        top = self._shape.logprobs
        return chat_logprobs(self._vocabulary, drawn, top) if top >= 0 else None

    def _ids(self, drawn: Sequence[Drawn]) -> list[int] | UnsetType:
        return [one.id for one in drawn] if self._shape.token_ids else UNSET


def _message(message: ChatMessage, path: str) -> dict[str, Any]:
    if message.role in ("tool", "function"):
        raise NotBuilt(
            f"{path}.role: {message.role!r} needs tools, which are not served here", f"{path}.role"
        )
    role = _ROLES.get(message.role)
    if role is None:
        known = ", ".join(_ROLES)
        raise InvalidRequest(f"{path}.role: {message.role[:80]!r} is not one of {known}", f"{path}.role")
    refuse_message(message, f"{path}.")
    if message.content is None:
        raise InvalidRequest(f"{path}.content: required, and not there; send a text", f"{path}.content")
    made = {"role": role, "content": _text(message.content, f"{path}.content")}
    return made if message.name is None else made | {"name": message.name}


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


def _deeper(value: object, levels: int) -> bool:
    """Whether a JSON value nests deeper than so many levels."""
    layer: list[object] = [value]
    for _ in range(levels):
        inner: list[object] = []
        for one in layer:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        if not inner:
            return False
        layer = inner
    return any(isinstance(one, dict | list) for one in layer)
