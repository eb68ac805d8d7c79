"""Tokenizing only what was not tokenized before: texts are cut where no token can cross, and the ids of the
parts are kept. Soft state: pure, bounded; knows nothing of requests, threads or templates.

An added token that is one token wherever it stands (a chat template's marks, mostly) parts a text before
any other rule of the tokenizer sees it: what stands on both sides is tokenized by itself. So a cut before
one is safe, and the ids of the parts, joined, are exactly those of the whole. A conversation's next turn, or
the next conversation with the same system prompt, has all but its newest parts here. Long stretches without a
mark are cut between two words, too, where the tokenizer is one that always parts them there.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence

from shared.kv.hashing import pack_ids, unpack_ids

LEAST = 256
"""Characters of a part that is worth keeping: shorter ones are tokenized faster than they are looked up."""
PIECE = 4096
"""Characters from which on a part may end between two words: about a millisecond of the tokenizer."""
_OVERHEAD = 128  # bytes of objects beside a part's ids
_WORDS = re.compile("[A-Za-z](?= [A-Za-z])")


class Cutter:
    """Where texts may be cut."""

    def __init__(self, marks: Sequence[str], others: Sequence[str] = (), *, words: bool = False) -> None:
        """`marks`: added tokens that are taken as they stand; `others`: added ones that may take more than
        their own text with them, and that win over a mark they overlap where they begin before it. `words`:
        a letter, and a space before another letter, are never in one token."""
        self._words = words
        every = sorted({*marks, *others}, key=len, reverse=True)  # the tokenizer takes the longest, too
        self._marks = frozenset(marks)
        self._find = re.compile("|".join(map(re.escape, every))) if marks else None

    def parts(self, text: str) -> list[str]:
        """The text in parts, each but the first beginning with a mark; short ones stay with those before."""
        if len(text) < LEAST:
            return [text]
        parts: list[str] = []
        begun = 0
        for found in self._find.finditer(text) if self._find is not None else ():
            if found[0] in self._marks and found.start() - begun >= LEAST:
                parts += self._pieces(text[begun : found.start()])
                begun = found.start()
        return parts + self._pieces(text[begun:])

    def _pieces(self, part: str) -> list[str]:
        """A part cut between words; always from its start on, so that a text that grows keeps its cuts."""
        pieces: list[str] = []
        begun = 0
        while self._words and len(part) - begun >= PIECE + LEAST:
            found = _WORDS.search(part, begun + PIECE - 1)
            if found is None or len(part) - found.end() < LEAST:
                break
            pieces.append(part[begun : found.end()])
            begun = found.end()
        return [*pieces, part[begun:]]


class SegmentMemory:
    """Ids of parts, by tenant salt and text. Least recently used ones go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, salt: bytes, part: str) -> list[int] | None:
        """Ids of a part; None: they are not known."""
        if len(part) < LEAST:
            return None
        key = _key(salt, part)
        packed = self._kept.get(key)
        if packed is None:
            return None
        self._kept.move_to_end(key)
        return unpack_ids(packed)

    def remember(self, salt: bytes, part: str, ids: Sequence[int]) -> None:
        """Keep them."""
        size = _OVERHEAD + 4 * len(ids)
        if len(part) < LEAST or size > self._max_bytes:
            return
        key = _key(salt, part)
        old = self._kept.pop(key, None)
        self.bytes += size - (0 if old is None else _OVERHEAD + len(old))
        self._kept[key] = pack_ids(ids)
        while self.bytes > self._max_bytes:
            _, packed = self._kept.popitem(last=False)
            self.bytes -= _OVERHEAD + len(packed)


def _key(salt: bytes, part: str) -> bytes:
    hasher = hashlib.blake2b(digest_size=16, person=b"pdd-segment")
    hasher.update(len(salt).to_bytes(8, "little"))
    hasher.update(salt)
    hasher.update(part.encode("utf-8", "surrogatepass"))
    return hasher.digest()
