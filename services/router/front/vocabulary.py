"""What each token id means in bytes, and which ids are special. Knows nothing of encoding, requests or
streams.

Text is made from bytes, never from per-token strings: a token may hold a part of a character.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared.errors import ModelError

_SPACE_MARK = "\u2581"


class Vocabulary:
    """Bytes of every id."""

    def __init__(self, pieces: Sequence[bytes], special: Iterable[int], added: Mapping[int, str]) -> None:
        self._pieces = list(pieces)
        self.special = frozenset(special)
        """Ids whose text is left out of answers unless it is asked for."""
        self._added_ids = {text: token for token, text in added.items()}
        self.added = tuple(sorted(added.values(), key=len, reverse=True))
        """Texts that are one token wherever they stand: safe places to cut a text for the tokenizer."""
        self.longest = max(map(len, self._pieces), default=1)
        """Bytes of the longest token."""

    def piece(self, token: int) -> bytes:
        """Bytes of one id; empty for an id that the tokenizer does not know."""
        return self._pieces[token] if 0 <= token < len(self._pieces) else b""

    def join(self, ids: Iterable[int]) -> bytes:
        """Bytes of a run of ids, special ones included."""
        return b"".join(map(self.piece, ids))

    def added_id(self, text: str) -> int | None:
        """The id of a text that is one token wherever it stands; None: it is none."""
        return self._added_ids.get(text)

    def starts_with_added(self, text: str, at: int = 0) -> bool:
        """Whether one of `added` stands at position `at` of `text`."""
        return text.startswith(self.added, at)


def read_vocabulary(tokens: Mapping[str, int], spec: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a tokenizer: `tokens` (text to id, added ones included) and its decoder in
    tokenizer.json.

    Raises ModelError for a decoder that is neither byte-level nor SentencePiece-like.
    """
    added = {int(entry["id"]): str(entry["content"]) for entry in spec.get("added_tokens") or ()}
    special = [int(entry["id"]) for entry in spec.get("added_tokens") or () if entry.get("special")]
    read = _piece_reader(spec.get("decoder"))
    pieces = [b""] * (max([*tokens.values(), *added], default=-1) + 1)
    for text, token in tokens.items():
        pieces[token] = read(text)
    for token, text in added.items():
        pieces[token] = text.encode()
    return Vocabulary(pieces, special, added)


class _ByteLevel:
    """One printable character for each byte, as GPT-2 writes them."""

    def __init__(self) -> None:
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = iter(range(256, 512))
        self._bytes = {chr(byte) if byte in plain else chr(next(others)): byte for byte in range(256)}

    def __call__(self, text: str) -> bytes:
        try:
            return bytes([self._bytes[character] for character in text])
        except KeyError:
            return text.encode()


class _SentencePiece:
    """A mark for the space, and `<0xNN>` for bytes without a token."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __call__(self, text: str) -> bytes:
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                pass
        return text.replace(self._mark, " ").encode()


def _piece_reader(decoder: Mapping[str, Any] | None) -> _ByteLevel | _SentencePiece:
    steps = _steps(decoder)
    kinds = {str(step.get("type")) for step in steps}
    if "ByteLevel" in kinds:
        return _ByteLevel()
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        marks = [step["replacement"] for step in steps if step.get("type") == "Metaspace"]
        return _SentencePiece(str(marks[0]) if marks else _SPACE_MARK)
    found = ", ".join(sorted(kinds)) or "none"
    raise ModelError(
        f"tokenizer.json: decoder of kind {found} is not served; byte-level and SentencePiece decoders are"
    )


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if not decoder:
        return []
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]
