"""Ids to text, one id at a time: a character goes out when its last byte has come. Knows nothing of stops or
clients."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from services.router.front.vocabulary import Vocabulary


class Detokenizer:
    """The text of a growing run of ids. All that it returned, joined, is the decoding of the whole run, with
    U+FFFD where the bytes are no UTF-8."""

    def __init__(
        self, vocabulary: Vocabulary, *, skip_special: bool = True, shown: Iterable[int] = ()
    ) -> None:
        """`shown`: special ids whose text is given all the same."""
        self._vocabulary = vocabulary
        self._hidden = vocabulary.special.difference(shown) if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Text that is certain after this id; what belongs to an unfinished character is kept."""
        if token in self._hidden:
            return ""
        return self._decoder.decode(self._vocabulary.piece(token))

    def end(self) -> str:
        """What is left of an unfinished character: U+FFFD, or nothing."""
        return self._decoder.decode(b"", True)


def text_of(vocabulary: Vocabulary, ids: Iterable[int], *, skip_special: bool) -> str:
    """Decode a whole run at once."""
    hidden = vocabulary.special if skip_special else frozenset()
    return vocabulary.join(token for token in ids if token not in hidden).decode("utf-8", "replace")
