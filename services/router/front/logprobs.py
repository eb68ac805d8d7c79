"""Log-probabilities of generated ids in the shapes of the two endpoints. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.front.choice import Drawn
from services.router.front.replies import ChatLogprobs, CompletionLogprobs, TokenEntry, TopLogprob
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
    best = [
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
