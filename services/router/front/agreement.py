"""How far a text agrees with ids that were drawn before. Pure; knows nothing of memory, tenants or
requests."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.router.front.reading import bare, tagged
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

    Compared is what the client saw: U+FFFD where bytes were no UTF-8. Where the two part inside a run of
    words, the last word is left to the tokenizer, so that it sees whole words.
    """
    pieces = [vocabulary.piece(token) for token in answer]
    drawn, marks = _decode(pieces)
    common = common_start(drawn, text)
    count = max((at for at, size in marks.items() if size <= common), default=0)
    rest = text[marks[count] :]
    ends_special = bool(answer) and answer[-1] in vocabulary.special
    body = len(drawn) - (len(pieces[-1].decode()) if ends_special else 0)
    clean = not rest or _turn_ends(vocabulary, rest)
    if marks[count] >= body and clean:
        return Agreement(list(answer[:count]), rest, "full", "")
    reason = _reason(vocabulary, answer, drawn[:body], text, text[common:])
    if not clean:
        count = _word_start(pieces, count, rest, marks)
        rest = text[marks[count] :]
    return Agreement(list(answer[:count]), rest, "partial" if count else "prompt", reason)


def shared_text(vocabulary: Vocabulary, answer: Sequence[int], text: str) -> int:
    """Characters of an answer that a text starts with."""
    return common_start(vocabulary.join(answer).decode("utf-8", "replace"), text)


def _decode(pieces: Sequence[bytes]) -> tuple[str, dict[int, int]]:
    """The text of the pieces, and how long it is after so many of them, where no character is unfinished."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts: list[str] = []
    marks = {0: 0}
    size = 0
    for count, piece in enumerate(pieces, 1):
        parts.append(decoder.decode(piece, count == len(pieces)))
        size += len(parts[-1])
        if not decoder.getstate()[0]:
            marks[count] = size
    return "".join(parts), marks


def common_start(one: str, other: str) -> int:
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


def _turn_ends(vocabulary: Vocabulary, rest: str) -> bool:
    """Whether the template's mark for the end of a turn comes next (a token by itself, maybe after white
    space)."""
    blank = len(rest[:64]) - len(rest[:64].lstrip())
    return vocabulary.starts_with_added(rest, blank)


def _word_start(pieces: Sequence[bytes], count: int, rest: str, marks: Mapping[int, int]) -> int:
    """The last place at or before `count` where a word starts; `count` itself in long unspaced text."""
    following = rest[:1].encode()
    for at in range(count, max(0, count - _BACK_OFF), -1):
        before = pieces[at - 1]
        if following[:1].isspace() and before and not before[-1:].isspace() and at in marks:
            return at
        following = before or following
    return 0 if count <= _BACK_OFF else count


def _reason(vocabulary: Vocabulary, answer: Sequence[int], drawn: str, text: str, after: str) -> str:
    start = text[: len(drawn) + 64].lstrip()
    if "</think>" in drawn and start.startswith(drawn.rpartition("</think>")[2].strip()):
        return "thinking"
    if _calls(drawn):
        return "tool_call"
    if drawn != drawn.strip() and start.startswith(drawn.strip()):
        return "trimmed"
    if any(token in vocabulary.special for token in answer[:-1]):
        return "special"
    return "cut" if _turn_ends(vocabulary, after) else "edited"


def _calls(drawn: str) -> bool:
    """Whether an answer calls tools, in any of the formats."""
    if tagged.OPEN in drawn or bare.TAG in drawn:
        return True
    return drawn.lstrip().startswith("{") and '"name"' in drawn
