"""Generated ids, spliced back in where their text returns. Soft state: pure, bounded, `now` comes in.

An answer's text, tokenized anew, often gives other ids than were drawn; the prefix would end there and the
rest of the conversation would cross the line again. So a prompt's ids and the ids drawn after it are kept
under (tenant salt, the prompt's text). A later text that begins with that prompt takes the prompt's ids and
as many of the drawn ids as its text agrees with; only the rest is tokenized. The ids taken always decode to
exactly the text they stand for.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.router.front.agreement import Agreement, agree, common_start, shared_text
from services.router.front.vocabulary import Vocabulary
from shared.kv.hashing import pack_ids, unpack_ids

_CHUNK = 1024  # characters between the places a prompt is looked up at
_VARIANTS = 8  # answers kept of one prompt
_OVERHEAD = 512  # bytes of objects beside a turn's text and ids


@dataclass(frozen=True, slots=True)
class Place:
    """A text's address: the chain hash of its full chunks under a salt, what follows them, and its length."""

    key: bytes
    tail: str
    length: int


@dataclass(frozen=True, slots=True)
class Recall:
    """Ids of the leading part of a text; `rest` is still to be tokenized."""

    place: Place
    ids: list[int]
    rest: str
    result: str  # none | prompt | partial | full
    drawn: int = 0  # how many of `ids` were drawn by the model and found by text in this step


@dataclass(slots=True)
class _Turn:
    """One prompt and the answers drawn after it."""

    place: Place
    prompt: bytes
    chat: bool
    used: float
    answers: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        return _OVERHEAD + len(self.place.tail) + len(self.prompt) + sum(map(len, self.answers))


class _Bucket:
    """Turns whose prompts have the same full chunks, by what follows those."""

    def __init__(self) -> None:
        self._tails: list[str] = []  # in order
        self._turns: dict[str, _Turn] = {}

    def __bool__(self) -> bool:
        return bool(self._tails)

    def add(self, turn: _Turn) -> None:
        """One that is not here yet."""
        insort(self._tails, turn.place.tail)
        self._turns[turn.place.tail] = turn

    def remove(self, turn: _Turn) -> None:
        """One that is here."""
        del self._tails[bisect_left(self._tails, turn.place.tail)]
        del self._turns[turn.place.tail]

    def longest(self, text: str) -> _Turn | None:
        """The turn with the longest tail that `text` begins with. The last tail in order up to the text is
        it, or bounds how much of the text it can have: what the two have in common."""
        while (at := bisect_right(self._tails, text)) > 0:
            tail = self._tails[at - 1]
            if text.startswith(tail):
                return self._turns[tail]
            text = text[: common_start(tail, text)]
        return None


class SpliceMemory:
    """What was generated lately."""

    def __init__(self, vocabulary: Vocabulary, *, max_bytes: int, max_turns: int, ttl: float) -> None:
        """`ttl`: seconds a turn is kept after its last use."""
        self._vocabulary = vocabulary
        self._max_bytes = max_bytes
        self._max_turns = max_turns
        self._ttl = ttl
        self._turns: OrderedDict[Place, _Turn] = OrderedDict()  # least recently used first
        self._by_key: dict[bytes, _Bucket] = {}
        self.bytes = 0
        self.results: Counter[str] = Counter()
        """How recalls went: none, prompt, partial, full."""
        self.divergences: Counter[str] = Counter()
        """Why a returning answer was not the drawn one: trimmed, thinking, tool_call, cut, special,
        edited."""

    def __len__(self) -> int:
        return len(self._turns)

    def recall(self, now: float, salt: bytes, text: str) -> Recall:
        """The longest remembered start of `text`, as ids."""
        self._expire(now)
        place, turn = self._find(salt, text)
        if turn is None or (agreed := self._agree(turn, text)) is None:
            self.results["none"] += 1
            return Recall(place, [], text, "none")
        turn.used = now
        self._turns.move_to_end(turn.place)
        if agreed.reason:
            self.divergences[agreed.reason] += 1
        result = agreed.result
        self.results[result] += 1
        ids = unpack_ids(turn.prompt) + agreed.ids
        return Recall(place, ids, agreed.rest, result, len(agreed.ids))

    def remember(
        self, now: float, place: Place, prompt: Sequence[int], answer: Sequence[int], *, chat: bool
    ) -> None:
        """Keep what was drawn after a prompt. `place` is what `recall` gave for the prompt's text; `chat`:
        that text ends where an answer begins, so that its ids stand whatever follows."""
        if not answer:
            return
        turn = self._turns.get(place)
        if turn is None:
            turn = _Turn(place, pack_ids(prompt), chat, now)
            self._turns[place] = turn
            self._by_key.setdefault(place.key, _Bucket()).add(turn)
        else:
            self.bytes -= turn.size
        turn.used = now
        packed = pack_ids(answer)
        others = [kept for kept in turn.answers if kept != packed]
        turn.answers = [*others[1 - _VARIANTS :], packed]
        self.bytes += turn.size
        self._turns.move_to_end(place)
        while self.bytes > self._max_bytes or len(self._turns) > self._max_turns:
            self._drop(next(iter(self._turns.values())))

    def _find(self, salt: bytes, text: str) -> tuple[Place, _Turn | None]:
        """The text's own place, and the turn with the longest prompt that it begins with."""
        key = hashlib.blake2b(salt, digest_size=16, person=b"pdd-splice").digest()
        best: _Turn | None = None
        for at in range(0, len(text) + 1, _CHUNK):
            bucket = self._by_key.get(key)
            best = (bucket and bucket.longest(text[at : at + _CHUNK - 1])) or best
            if at + _CHUNK > len(text):
                break
            chunk = text[at : at + _CHUNK].encode()
            key = hashlib.blake2b(chunk, digest_size=16, key=key).digest()
        return Place(key, text[len(text) // _CHUNK * _CHUNK :], len(text)), best

    def _agree(self, turn: _Turn, text: str) -> Agreement | None:
        """How far the text after the turn's prompt agrees with one of its answers; None: nothing can be
        used."""
        rest = text[turn.place.length :]
        if not rest:
            return Agreement([], "", "prompt", "")
        answers = [unpack_ids(answer) for answer in turn.answers]
        nearest = max(answers, key=lambda answer: shared_text(self._vocabulary, answer, rest))
        best = agree(self._vocabulary, nearest, rest)
        if not best.ids and not turn.chat:
            self.divergences[best.reason] += 1
            return None
        return best

    def _expire(self, now: float) -> None:
        while self._turns:
            oldest = next(iter(self._turns.values()))
            if now - oldest.used < self._ttl:
                return
            self._drop(oldest)

    def _drop(self, turn: _Turn) -> None:
        del self._turns[turn.place]
        self.bytes -= turn.size
        bucket = self._by_key[turn.place.key]
        bucket.remove(turn)
        if not bucket:
            del self._by_key[turn.place.key]
