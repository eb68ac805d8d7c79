"""How ids are drawn: a request's fields, the model's defaults and limits put together. Pure; knows no
HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.router.front.openai import Ask
from shared.errors import ContextTooLong, InvalidRequest, NotBuilt
from shared.wire.messages import Sampling

_NEUTRAL = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


MOST_SCORES = 200_000
"""Log-probabilities of one prompt at most."""

_COLDEST = 1e-6
"""Temperatures below it are 0: noise of that size tells no two scores apart, and scores over it overflow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model allows."""

    vocab_size: int
    max_context: int
    eos_ids: tuple[int, ...]
    defaults: Mapping[str, float]
    """The model's own temperature, top_k, top_p, min_p and repetition_penalty."""


def check_length(limits: Limits, prompt_len: int, what: str) -> None:
    """Refuse an empty prompt, and one that leaves no room for an answer. `what`: the parameter."""
    if not prompt_len:
        raise InvalidRequest(f"{what}: the prompt has no tokens; send at least one", what)
    if prompt_len >= limits.max_context:
        raise ContextTooLong(
            f"{what}: this model's maximum context length is {limits.max_context} tokens, and the prompt has "
            f"{prompt_len}; shorten it so that an answer has room",
            what,
        )


def check_scores(prompt_len: int, best: int) -> None:
    """Refuse more log-probabilities of a prompt than one answer carries. `best`: beside each id; -1: none."""
    if prompt_len * (best + 1) > MOST_SCORES:
        raise InvalidRequest(
            f"prompt_logprobs: {best} beside each of {prompt_len} ids are more than {MOST_SCORES}; ask for "
            "fewer, or shorten the prompt",
            "prompt_logprobs",
        )


def output_room(limits: Limits, prompt_len: int, asked: int | None, what: str, default: int | None) -> int:
    """Tokens the answer may have. `what`: the parameter that asked; `default` None: all that is left."""
    room = limits.max_context - prompt_len
    if asked is None:
        return room if default is None else min(default, room)
    if asked > room:
        raise ContextTooLong(
            f"{what}: this model's maximum context length is {limits.max_context} tokens, and the request "
            f"has {prompt_len + asked} ({prompt_len} in the prompt, {asked} in the answer); lower {what} to "
            f"at most {room}, or shorten the prompt",
            what,
        )
    return asked


def build_sampling(
    ask: Ask,
    limits: Limits,
    *,
    prompt_len: int,
    max_tokens: int,
    logprobs: int,
    seed: int,
    grammar: str = "",
) -> Sampling:
    """The sampling of choice 0. `seed` is used where the request names none. Raises InvalidRequest.

    Under a grammar `ignore_eos` says no more than that the end comes late: where nothing but the end is left,
    there is nothing to go on with.
    """
    if ask.min_tokens is not None and ask.min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens: {ask.min_tokens} is above the {max_tokens} tokens the answer may have", "min_tokens"
        )
    if ask.seed is not None and ask.seed >= 2**64:
        raise InvalidRequest(f"seed: {ask.seed} does not fit 64 bits", "seed")
    bias = ask.logit_bias or {}
    _check_ids("logit_bias", bias, limits)
    stop_ids = ask.stop_token_ids or []
    _check_ids("stop_token_ids", stop_ids, limits)
    least = ask.min_tokens or 0
    eos = limits.eos_ids
    temperature = _value(ask.temperature, "temperature", limits)
    if grammar:
        least = max_tokens if ask.ignore_eos else least
        _check_ends(ask, limits)
    elif ask.ignore_eos:
        eos = ()
    return Sampling(
        max_pos=prompt_len + max_tokens,
        seed=(seed if ask.seed is None else ask.seed) & (2**64 - 1),
        temperature=temperature if temperature >= _COLDEST else 0.0,
        top_k=max(0, int(_value(ask.top_k, "top_k", limits))),
        top_p=_value(ask.top_p, "top_p", limits),
        min_p=_value(ask.min_p, "min_p", limits),
        repetition_penalty=_value(ask.repetition_penalty, "repetition_penalty", limits),
        presence_penalty=ask.presence_penalty or 0.0,
        frequency_penalty=ask.frequency_penalty or 0.0,
        logit_bias=bias,
        min_tokens=least,
        stop_ids=tuple(dict.fromkeys((*eos, *stop_ids))),
        logprobs=logprobs,
        grammar=grammar,
    )


def _check_ends(ask: Ask, limits: Limits) -> None:
    """What ends an answer that has a form."""
    if not limits.eos_ids:
        raise NotBuilt("structured answers need a model that names its end; this one does not")
    if ask.ignore_eos and ask.stop_token_ids:
        raise InvalidRequest(
            "stop_token_ids: cannot go with ignore_eos where the answer has a form; send one of them",
            "stop_token_ids",
        )


def _value(asked: float | None, name: str, limits: Limits) -> float:
    """The request's value, else the model's default, else the one that changes nothing."""
    return float(asked if asked is not None else limits.defaults.get(name, _NEUTRAL[name]))


def _check_ids(name: str, ids: Iterable[int], limits: Limits) -> None:
    for token in ids:
        if not 0 <= token < limits.vocab_size:
            raise InvalidRequest(
                f"{name}: {token} is no token id of this model; ids are 0 to {limits.vocab_size - 1}", name
            )
