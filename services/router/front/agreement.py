"""How far a text agrees with ids that were drawn before. Pure; knows nothing of memory, tenants or
requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.front.vocabulary import Vocabulary

_BACK_OFF = 32  # ids looked back over for the start of a word


@dataclass(frozen=True, slots=True)
class Agreement:
    """Leading ids of an answer that decode to the start of a text, and what of the text is left."""

    ids: list[int]
    rest: str
    result: str  # full: the whole answer; partial: less; prompt: nothing of it
    reason: str  # why not the whole answer; "" where full


def agree(vocabulary: Vocabulary, answer: Sequence[int], text: str) -> Agreement:
    """Compare an answer with the text that stands after its prompt now.

    Where they part inside a run of words, the last word is left to the tokenizer, so that it sees whole
    words.
    """
    pieces = [vocabulary.piece(token) for token in answer]
    raw = b"".join(pieces)
    window = text[: len(raw)].encode()
    common = _common(raw, window)
    count, size = _whole(pieces, window, common)
    rest = text[len(window[:size].decode()) :]
    ends_special = bool(answer) and answer[-1] in vocabulary.special
    body = len(raw) - (len(pieces[-1]) if ends_special else 0)
    clean = not rest or _turn_ends(vocabulary, rest)
    if size >= body and clean:
        return Agreement(list(answer[:count]), rest, "full", "")
    reason = _reason(
        vocabulary, answer, raw[:body], text, text[len(window[:common].decode("utf-8", "ignore")) :]
    )
    if not clean:
        kept = _word_start(pieces, count, rest)
        if kept < count:
            size = sum(map(len, pieces[:kept]))
            count, rest = kept, text[len(window[:size].decode()) :]
    return Agreement(list(answer[:count]), rest, "partial" if count else "prompt", reason)


def shared_bytes(vocabulary: Vocabulary, answer: Sequence[int], text: str) -> int:
    """Bytes of an answer that a text starts with."""
    raw = vocabulary.join(answer)
    return _common(raw, text[: len(raw)].encode())


def _common(one: bytes, other: bytes) -> int:
    """Length of the common start."""
    if other.startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _whole(pieces: Sequence[bytes], window: bytes, common: int) -> tuple[int, int]:
    """(ids, bytes) of the most whole ids within `common` bytes that end between two characters of the
    window."""
    best = (0, 0)
    size = 0
    for count, piece in enumerate(pieces, 1):
        size += len(piece)
        if size > common:
            break
        if size == len(window) or window[size] & 0xC0 != 0x80:
            best = (count, size)
    return best


def _turn_ends(vocabulary: Vocabulary, rest: str) -> bool:
    """Whether the template's mark for the end of a turn comes next (a token by itself, maybe after white
    space)."""
    blank = len(rest[:64]) - len(rest[:64].lstrip())
    return vocabulary.starts_with_added(rest, blank)


def _word_start(pieces: Sequence[bytes], count: int, rest: str) -> int:
    """The last place at or before `count` where a word starts; `count` itself in long unspaced text."""
    following = rest[:1].encode()
    for at in range(count, max(0, count - _BACK_OFF), -1):
        before = pieces[at - 1]
        if following[:1].isspace() and before and not before[-1:].isspace():
            return at
        following = before or following
    return 0 if count <= _BACK_OFF else count


def _reason(vocabulary: Vocabulary, answer: Sequence[int], body: bytes, text: str, after: str) -> str:
    drawn = body.decode("utf-8", "replace")
    start = text[: len(drawn) + 64].lstrip()
    if "</think>" in drawn and start.startswith(drawn.rpartition("</think>")[2].strip()):
        return "thinking"
    if "<tool_call>" in drawn:
        return "tool_call"
    if drawn != drawn.strip() and start.startswith(drawn.strip()):
        return "trimmed"
    if any(token in vocabulary.special for token in answer[:-1]):
        return "special"
    return "cut" if _turn_ends(vocabulary, after) else "edited"
