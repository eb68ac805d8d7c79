"""The ways in which models write calls, by name; and how one request's answers are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.router.front.reading import bare, tagged, thinking
from services.router.front.reading.bare import BareReader
from services.router.front.reading.pieces import PlainReader, Reader
from services.router.front.reading.tagged import TaggedReader
from services.router.front.reading.thinking import ThinkReader


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls."""

    name: str
    mark: str
    """What begins a call, where something does."""
    reader: Callable[[frozenset[str]], Reader]
    """Makes a reader for tools of these names."""


FORMATS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat("hermes", tagged.OPEN, lambda _tools: TaggedReader()),
    "llama3_json": ToolFormat("llama3_json", bare.TAG, BareReader),
    "smollm2": ToolFormat("smollm2", tagged.OPEN, lambda _tools: TaggedReader()),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers of one request are read."""

    format: ToolFormat | None = None
    """None: no calls are looked for."""
    tools: frozenset[str] = frozenset()
    thinks: bool = False
    opened: bool = False
    """The prompt ends inside a thought."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that a reader must see even where they are special tokens."""
        calls = (self.format.mark, tagged.CLOSE) if self.format is not None else ()
        return (*calls, *((thinking.OPEN, thinking.CLOSE) if self.thinks else ()))

    def reader(self) -> Reader:
        """A reader for one choice."""
        calls = PlainReader() if self.format is None else self.format.reader(self.tools)
        return ThinkReader(calls, opened=self.opened) if self.thinks else calls
