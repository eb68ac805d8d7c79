"""What an answer's text turns out to be, piece by piece. Data only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Said:
    """Words for the client."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """What the model wrote before its answer, for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call of a tool."""

    name: str
    arguments: str
    """A JSON object, as the model wrote it."""


Piece = Said | Thought | ToolCall


class Reader(Protocol):
    """Takes an answer's text in pieces. The pieces it gives back, joined, are the same however the text was
    cut."""

    @property
    def thinking(self) -> bool:
        """Whether the text just taken belongs to a thought."""

    def add(self, text: str) -> list[Piece]:
        """What is certain after this text."""

    def end(self) -> list[Piece]:
        """What was held back; nothing follows."""


class PlainReader:
    """A reader of answers that are words and nothing else."""

    thinking = False

    def add(self, text: str) -> list[Piece]:
        """The text itself."""
        return [Said(text)] if text else []

    def end(self) -> list[Piece]:
        """Nothing is ever held back."""
        return []


def joined(pieces: list[Piece], piece: Piece) -> None:
    """Append a piece; text that continues the last piece is joined to it."""
    last = pieces[-1] if pieces else None
    if isinstance(piece, Said) and isinstance(last, Said):
        pieces[-1] = Said(last.text + piece.text)
    elif isinstance(piece, Thought) and isinstance(last, Thought):
        pieces[-1] = Thought(last.text + piece.text)
    else:
        pieces.append(piece)


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """The same with every run of words, and of thoughts, as one piece."""
    made: list[Piece] = []
    for kind, run in groupby(pieces, type):
        if kind is ToolCall:
            made += run
        else:
            made.append(kind("".join(piece.text for piece in run if not isinstance(piece, ToolCall))))
    return made
