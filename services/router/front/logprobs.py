"""Log-probabilities of generated ids in the shapes of the two endpoints. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from services.router.front.choice import Drawn
from services.router.front.replies import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptEntry,
    TokenEntry,
    TopLogprob,
)
from services.router.front.vocabulary import Vocabulary
from shared.wire.messages import TokenLogprob

_LOWEST = -9999.0  # JSON has no infinity; OpenAI writes this


def chat_logprobs(vocabulary: Vocabulary, drawn: Sequence[Drawn], top: int) -> ChatLogprobs:
    """One entry an id: its text (U+FFFD for a part of a character), its true bytes and the `top` best."""
    return ChatLogprobs([_entry(vocabulary, one, top) for one in drawn])


def completion_logprobs(
    vocabulary: Vocabulary, drawn: Sequence[Drawn], top: int, shift: int
) -> CompletionLogprobs:
    """The legacy shape. `shift`: characters of echoed prompt before the answer's text."""
    records = [_record(one) for one in drawn]
    names = [_name(vocabulary, one.id) for one in drawn]
    best: list[dict[str, float] | None] = [
        {_name(vocabulary, token): _finite(logprob) for token, logprob in record.top[:top]}
        | {name: _finite(record.logprob)}
        for name, record in zip(names, records, strict=True)
    ]
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[_finite(record.logprob) for record in records],
        top_logprobs=best if top else None,
        text_offset=[one.offset + shift for one in drawn],
    )


def echoed_logprobs(
    vocabulary: Vocabulary, ids: Sequence[int], scores: Sequence[TokenLogprob], top: int, text: str
) -> CompletionLogprobs:
    """Those of an echoed prompt: its first id has none. `text`: the prompt's, for the places of ids in it."""
    names = [_name(vocabulary, token) for token in ids]
    offsets: list[int] = []
    place = 0
    for token in ids:
        offsets.append(min(place, len(text)))
        place += len(_text(vocabulary, token))
    best = [
        {_name(vocabulary, token): _finite(logprob) for token, logprob in one.top[:top]}
        | {name: _finite(one.logprob)}
        for name, one in zip(names[1:], scores, strict=True)
    ]
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[None, *(_finite(one.logprob) for one in scores)],
        top_logprobs=[None, *best] if top else None,
        text_offset=offsets,
    )


def joined_logprobs(first: CompletionLogprobs, then: CompletionLogprobs) -> CompletionLogprobs:
    """One after the other."""
    best = None
    if first.top_logprobs is not None and then.top_logprobs is not None:
        best = [*first.top_logprobs, *then.top_logprobs]
    return CompletionLogprobs(
        tokens=first.tokens + then.tokens,
        token_logprobs=[*first.token_logprobs, *then.token_logprobs],
        top_logprobs=best,
        text_offset=first.text_offset + then.text_offset,
    )


def prompt_logprobs(
    vocabulary: Vocabulary, ids: Sequence[int], scores: Sequence[TokenLogprob] | None
) -> list[dict[str, PromptEntry] | None] | UnsetType:
    """vLLM's shape: for each id of the prompt, itself and the best ones, by id; none for the first."""
    if scores is None:
        return UNSET
    found: list[dict[str, PromptEntry] | None] = [None]
    for token, one in zip(ids[1:], scores, strict=True):
        entries = {
            str(best): PromptEntry(_finite(logprob), rank, _text(vocabulary, best))
            for rank, (best, logprob) in enumerate(one.top, 1)
        }
        if str(token) not in entries:
            entries[str(token)] = PromptEntry(_finite(one.logprob), None, _text(vocabulary, token))
        found.append(entries)
    return found


def _entry(vocabulary: Vocabulary, one: Drawn, top: int) -> TokenEntry:
    record = _record(one)
    best = [
        TopLogprob(_text(vocabulary, token), _finite(logprob), list(vocabulary.piece(token)))
        for token, logprob in record.top[:top]
    ]
    piece = vocabulary.piece(one.id)
    return TokenEntry(_text(vocabulary, one.id), _finite(record.logprob), list(piece), best)


def _record(one: Drawn) -> TokenLogprob:
    return one.logprob if one.logprob is not None else TokenLogprob(_LOWEST)


def _text(vocabulary: Vocabulary, token: int) -> str:
    return vocabulary.piece(token).decode("utf-8", "replace")


def _name(vocabulary: Vocabulary, token: int) -> str:
    """The id's text, or `bytes:\\xNN...` for a part of a character, so that no two ids share a name by
    accident."""
    piece = vocabulary.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float) -> float:
    return max(_LOWEST, logprob)
