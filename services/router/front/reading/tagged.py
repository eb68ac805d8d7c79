"""Calls between `<tool_call>` and `</tool_call>`: Hermes and Qwen write one JSON object in each pair of
marks, SmolLM2 a list of them."""

from __future__ import annotations

from services.router.front.reading.json_text import JsonWhole, read_calls
from services.router.front.reading.overlap import overlap
from services.router.front.reading.pieces import Piece
from services.router.front.reading.words import Words

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class TaggedReader:
    """Gives a call when its mark has closed. What follows an opening mark and is no call is words, the mark
    included. However often marks come, each character is looked at a few times and no more."""

    thinking = False

    def __init__(self) -> None:
        self._words = Words()
        self._held = ""
        self._at = 0  # what is held is decided up to here
        self._body: JsonWhole | None = None  # of the call that began at `_at`

    def add(self, text: str) -> list[Piece]:
        """What is certain after this text."""
        self._held += text
        return self._run()

    def end(self) -> list[Piece]:
        """A call whose closing mark is missing counts where it is whole."""
        pieces = self._run()
        while self._body is not None:
            calls = read_calls(self._held[self._at :])
            step = self._broken() if calls is None else self._called(list[Piece](calls), len(self._held))
            pieces += step + self._run()
        return pieces + self._words.add(self._held) + self._words.end()

    def _run(self) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            step = self._outside() if self._body is None else self._inside(self._body)
            if step is None:
                break
            pieces += step
        if self._body is None:
            self._held, self._at = self._held[self._at :], 0
        return pieces

    def _outside(self) -> list[Piece] | None:
        at = self._held.find(OPEN, self._at)
        if at >= 0:
            words, self._at = self._held[self._at : at], at + len(OPEN)
            self._body = JsonWhole(self._at)
            return self._words.add(words)
        keep = max(self._at, len(self._held) - overlap(self._held, (OPEN,)))
        words, self._at = self._held[self._at : keep], keep
        return self._words.add(words) if words else None

    def _inside(self, body: JsonWhole) -> list[Piece] | None:
        end = body.end(self._held)
        if end < 0:
            return None
        if not self._held.startswith(CLOSE, end):
            return None if CLOSE.startswith(self._held[end : end + len(CLOSE)]) else self._broken()
        calls = read_calls(self._held[self._at : end])
        return self._broken() if calls is None else self._called(list[Piece](calls), end + len(CLOSE))

    def _called(self, calls: list[Piece], end: int) -> list[Piece]:
        self._body, self._at = None, end
        self._words.call()
        return calls

    def _broken(self) -> list[Piece]:
        """What follows the opening mark is no call: the mark is words, and the rest is looked at anew."""
        self._body = None
        return self._words.add(OPEN)
