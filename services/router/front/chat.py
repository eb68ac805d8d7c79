"""/v1/chat/completions: from its body to jobs, and from deltas to its answers. Knows nothing of sockets."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from services.router.front.answer import Gathered, Head, Shape, drawn_by, gather, trace, usage, usage_so_far
from services.router.front.choice import Delta, Drawn
from services.router.front.depth import check_depth
from services.router.front.dialect import Chunk
from services.router.front.failures import body_of
from services.router.front.generation import Generation
from services.router.front.logprobs import chat_logprobs, prompt_logprobs
from services.router.front.openai import Ask, ChatAsk
from services.router.front.reading.pieces import Thought, ToolCall
from services.router.front.replies import (
    CallFunctionOut,
    CallOut,
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
from services.router.front.vocabulary import Vocabulary
from shared.errors import InvalidRequest, MeshError
from shared.wire.messages import FinishReason

_MOST_LEVELS = 16


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
    check_depth(given, _MOST_LEVELS, "chat_template_kwargs")
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


def prompt_scores(ask: Ask) -> int:
    """How many best ids are asked for beside each id of the prompt; -1: nothing is."""
    if ask.prompt_logprobs is None:
        return -1
    if ask.stream:
        raise InvalidRequest("prompt_logprobs: not with stream; ask for a whole answer", "prompt_logprobs")
    return ask.prompt_logprobs


def session_of(ask: ChatAsk, messages: Sequence[Mapping[str, Any]], tenant: str) -> bytes:
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

    def __init__(
        self,
        head: Head,
        shape: Shape,
        generation: Generation,
        vocabulary: Vocabulary,
        new_id: Callable[[], str],
    ) -> None:
        """`new_id`: makes names for calls."""
        self._head = head
        self._shape = shape
        self._generation = generation
        self._vocabulary = vocabulary
        self._new_id = new_id
        self._opened: set[int] = set()
        self._calls: Counter[int] = Counter()  # given so far, by choice

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

    def failing(self, error: MeshError) -> list[Chunk]:
        return [body_of(error)]

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
                    message=self._message(one),
                    logprobs=self._logprobs(one.drawn),
                    finish_reason=_finish(one.finish, len(one.calls)),
                    stop_reason=one.stop,
                    token_ids=self._ids(one.drawn),
                )
                for one in gather(deltas, len(jobs))
            ],
            usage=self._usage(),
            prompt_token_ids=jobs[0].prompt.ids if self._shape.token_ids else UNSET,
            prompt_logprobs=prompt_logprobs(
                self._vocabulary, jobs[0].prompt.ids, self._generation.choices[0].prompt
            ),
            pdd=trace(self._generation, self._shape),
        )

    def _content(self, delta: Delta) -> list[ChatChunk]:
        """A chunk with what was gained, if the client sees any of it, and one for the end."""
        choice = ChatChunkChoice(
            index=delta.index,
            delta=self._delta(delta),
            logprobs=self._logprobs(delta.drawn) if delta.drawn else None,
            token_ids=self._ids(delta.drawn) if delta.drawn else UNSET,
        )
        seen = self._shape.logprobs >= 0 or self._shape.token_ids
        made = [self._chunk(choice)] if delta.pieces or (delta.drawn and seen) else []
        for chunk in made:
            chunk.pdd = drawn_by(delta, self._shape)
        if delta.finish is not None:
            end = ChatChunkChoice(
                index=delta.index,
                delta=ChatDelta(),
                finish_reason=_finish(delta.finish.value, self._calls[delta.index]),
                stop_reason=delta.stop,
            )
            made.append(self._chunk(end))
        return made

    def _delta(self, delta: Delta) -> ChatDelta:
        told = ChatDelta(content=delta.text)
        thought = "".join(piece.text for piece in delta.pieces if isinstance(piece, Thought))
        calls = [piece for piece in delta.pieces if isinstance(piece, ToolCall)]
        if thought:
            told.reasoning_content = thought
        if calls:
            told.tool_calls = [self._call(call) for call in calls]
            for call in told.tool_calls:
                call.index = self._calls[delta.index]
                self._calls[delta.index] += 1
        if not told.content and (thought or calls):
            told.content = UNSET
        return told

    def _message(self, one: Gathered) -> ChatMessageOut:
        silent = not one.text and bool(one.calls or one.thought)
        message = ChatMessageOut(None if silent else one.text)
        if one.thought:
            message.reasoning_content = one.thought
        if one.calls:
            message.tool_calls = [self._call(call) for call in one.calls]
        return message

    def _call(self, call: ToolCall) -> CallOut:
        return CallOut(self._new_id(), CallFunctionOut(call.name, call.arguments))

    def _chunk(self, choice: ChatChunkChoice | None) -> ChatChunk:
        return ChatChunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=[] if choice is None else [choice],
            usage=usage_so_far(self._generation, len(self._generation.jobs), self._shape),
        )

    def _usage(self) -> Usage:
        return usage(self._generation, len(self._generation.jobs))

    def _logprobs(self, drawn: Sequence[Drawn]) -> ChatLogprobs | None:
        top = self._shape.logprobs
        return chat_logprobs(self._vocabulary, drawn, top) if top >= 0 else None

    def _ids(self, drawn: Sequence[Drawn]) -> list[int] | UnsetType:
        return [one.id for one in drawn] if self._shape.token_ids else UNSET


def _finish(reason: str, calls: int) -> str:
    """OpenAI's finish_reason: an answer that ended by itself with calls ended for them."""
    return "tool_calls" if calls and reason == FinishReason.STOP.value else reason
