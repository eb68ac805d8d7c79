"""/v1/completions: from its body to jobs, and from deltas to its answers. Knows nothing of sockets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from services.router.front.answer import Head, Shape, drawn_by, gather, trace, usage, usage_so_far
from services.router.front.chat import prompt_scores
from services.router.front.choice import Delta, Drawn
from services.router.front.dialect import Chunk
from services.router.front.failures import body_of
from services.router.front.generation import Generation
from services.router.front.logprobs import (
    completion_logprobs,
    echoed_logprobs,
    joined_logprobs,
    prompt_logprobs,
)
from services.router.front.openai import CompletionAsk
from services.router.front.replies import (
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    PromptEntry,
)
from services.router.front.sampling import Limits, check_length
from services.router.front.vocabulary import Vocabulary
from shared.errors import InvalidRequest, MeshError
from shared.wire.messages import TokenLogprob

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of this endpoint."""


def read_prompts(ask: CompletionAsk, limits: Limits, most: int) -> list[str | list[int]]:
    """The prompts, each a text or ids; with n they make `most` choices at most. Raises InvalidRequest by
    place: what is too long or too many before each id or prompt is looked at."""
    prompt, n, vocab_size = ask.prompt, ask.n or 1, limits.vocab_size
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt: the list is empty; send at least one prompt", "prompt")
    if isinstance(prompt[0], int):
        check_length(limits, len(prompt), "prompt")
        if all(isinstance(one, int) for one in prompt):
            return [_ids([one for one in prompt if isinstance(one, int)], "prompt", vocab_size)]
    elif len(prompt) * n > most:
        raise InvalidRequest(
            f"prompt: {len(prompt)} prompts with n {n} make {len(prompt) * n} choices; at most {most} are "
            "served at once",
            "prompt",
        )
    found: list[str | list[int]] = []
    for at, one in enumerate(prompt):
        if isinstance(one, int) or type(one) is not type(prompt[0]):
            raise InvalidRequest(
                f"prompt[{at}]: one list holds texts, or token ids, or lists of token ids, not a mixture",
                f"prompt[{at}]",
            )
        if not isinstance(one, str):
            check_length(limits, len(one), "prompt")
            one = _ids(one, f"prompt[{at}]", vocab_size)
        found.append(one)
    return found


def completion_top(ask: CompletionAsk) -> int:
    """How many log-probabilities are asked for; -1: none."""
    if ask.logprobs is None:
        return -1
    return ask.logprobs


def completion_scores(ask: CompletionAsk) -> int:
    """How many best ids are asked for beside each id of the prompt; -1: nothing is."""
    echoed = ask.logprobs if ask.echo and ask.logprobs is not None else -1
    if echoed >= 0 and ask.stream:
        raise InvalidRequest("logprobs: not with echo and stream; leave one of them out", "logprobs")
    return max(prompt_scores(ask), echoed)


def completion_session(ask: CompletionAsk, tenant: str) -> bytes:
    """Names a conversation by the client's cache key; b"" for none."""
    if ask.prompt_cache_key is None:
        return b""
    return hashlib.blake2b(f"{tenant}\0k{ask.prompt_cache_key}".encode(), digest_size=16).digest()


class CompletionReply:
    """Answers of one completions request. `echoes`: the prompt's text per choice, where asked for;
    `tells_prompt`: `prompt_logprobs` was."""

    def __init__(
        self,
        head: Head,
        shape: Shape,
        generation: Generation,
        vocabulary: Vocabulary,
        *,
        n: int,
        echoes: Sequence[str] = (),
        tells_prompt: bool = False,
    ) -> None:
        self._head = head
        self._shape = shape
        self._generation = generation
        self._vocabulary = vocabulary
        self._n = n
        self._echoes = echoes
        self._tells_prompt = tells_prompt
        self._opened: set[int] = set()

    def chunks(self, deltas: Sequence[Delta]) -> list[Struct]:
        made: list[CompletionAnswer] = []
        for delta in deltas:
            content = self._content(delta)
            for chunk in content:
                chunk.pdd = drawn_by(delta, self._shape)
            made += content
        if made and self._generation.ended and not self._shape.include_usage:
            made[-1].pdd = trace(self._generation, self._shape)
        return list(made)

    def closing(self) -> list[Struct]:
        if not self._shape.include_usage:
            return []
        last = self._answer([])
        last.usage = usage(self._generation, self._n)
        last.pdd = trace(self._generation, self._shape)
        return [last]

    def failing(self, error: MeshError) -> list[Chunk]:
        return [body_of(error)]

    def whole(self, deltas: Sequence[Delta]) -> CompletionAnswer:
        choices = [
            CompletionChoice(
                index=one.index,
                text=self._echo(one.index) + one.text,
                logprobs=self._whole_logprobs(one.index, one.drawn),
                finish_reason=one.finish,
                stop_reason=one.stop,
                token_ids=self._ids(one.drawn),
                prompt_token_ids=self._prompt_ids(one.index),
                prompt_logprobs=self._prompt_logprobs(one.index),
            )
            for one in gather(deltas, len(self._generation.jobs))
        ]
        answer = self._answer(choices)
        answer.usage = usage(self._generation, self._n)
        answer.pdd = trace(self._generation, self._shape)
        return answer

    def _content(self, delta: Delta) -> list[CompletionAnswer]:
        choice = CompletionChoice(index=delta.index, text=delta.text)
        first = delta.index not in self._opened
        if first:
            self._opened.add(delta.index)
            choice.text = self._echo(delta.index) + choice.text
            choice.prompt_token_ids = self._prompt_ids(delta.index)
        if delta.drawn:
            choice.logprobs = self._logprobs(delta.index, delta.drawn)
            choice.token_ids = self._ids(delta.drawn)
        told = bool(choice.text) or choice.logprobs is not None or choice.token_ids is not UNSET
        made = [self._answer([choice])] if told or choice.prompt_token_ids is not UNSET else []
        if delta.finish is not None:
            end = CompletionChoice(
                index=delta.index, text="", finish_reason=delta.finish.value, stop_reason=delta.stop
            )
            made.append(self._answer([end]))
        return made

    def _answer(self, choices: list[CompletionChoice]) -> CompletionAnswer:
        return CompletionAnswer(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=choices,
            usage=usage_so_far(self._generation, self._n, self._shape),
        )

    def _echo(self, index: int) -> str:
        return self._echoes[index] if self._echoes else ""

    def _logprobs(self, index: int, drawn: Sequence[Drawn]) -> CompletionLogprobs | None:
        top = self._shape.logprobs
        return completion_logprobs(self._vocabulary, drawn, top, len(self._echo(index))) if top >= 0 else None

    def _whole_logprobs(self, index: int, drawn: Sequence[Drawn]) -> CompletionLogprobs | None:
        """With those of the prompt before them, where it is echoed."""
        made = self._logprobs(index, drawn)
        scores = self._scores(index)
        if made is None or scores is None or not self._echoes:
            return made
        ids = self._generation.jobs[index].prompt.ids
        top = self._shape.logprobs
        return joined_logprobs(echoed_logprobs(self._vocabulary, ids, scores, top, self._echo(index)), made)

    def _prompt_logprobs(self, index: int) -> list[dict[str, PromptEntry] | None] | UnsetType:
        if not self._tells_prompt:
            return UNSET
        return prompt_logprobs(self._vocabulary, self._generation.jobs[index].prompt.ids, self._scores(index))

    def _scores(self, index: int) -> Sequence[TokenLogprob] | None:
        """Those of the prompt that a choice continues: its first choice has them."""
        return self._generation.choices[index - index % self._n].prompt

    def _ids(self, drawn: Sequence[Drawn]) -> list[int] | UnsetType:
        return [one.id for one in drawn] if self._shape.token_ids else UNSET

    def _prompt_ids(self, index: int) -> list[int] | UnsetType:
        return self._generation.jobs[index].prompt.ids if self._shape.token_ids else UNSET


def _ids(ids: list[int], path: str, vocab_size: int) -> list[int]:
    for at, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            where = f"{path}[{at}]"
            raise InvalidRequest(
                f"{where}: {token} is no token id of this model; ids are 0 to {vocab_size - 1}", where
            )
    return ids
