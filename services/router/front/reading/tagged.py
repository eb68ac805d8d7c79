"""Calls between `<tool_call>` and `</tool_call>`: Hermes and Qwen write one JSON object in each pair of
marks, SmolLM2 a list of them."""

from __future__ import annotations

from services.router.front.reading.json_text import JsonEnd, read_calls
from services.router.front.reading.overlap import overlap
from services.router.front.reading.pieces import Piece
from services.router.front.reading.words import Words

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class TaggedReader:
    """Gives a call when its mark has closed. What is between marks and is no call is words, marks
    included."""

    thinking = False

    def __init__(self) -> None:
        self._words = Words()
        self._held = ""
        self._inside = False
        self._searched = 0  # characters of `_held` in which no closing mark was found

    def add(self, text: str) -> list[Piece]:
        """What is certain after this text."""
        self._held += text
        return self._run()

    def end(self) -> list[Piece]:
        """A call whose closing mark is missing counts where it is whole."""
        pieces = self._run()
        while self._inside:
            calls = read_calls(self._held)
            if calls is None:
                pieces += self._broken() + self._run()
                continue
            pieces += self._called(list[Piece](calls))
            self._inside, self._held = False, ""
        return pieces + self._words.add(self._held) + self._words.end()

    def _run(self) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            step = self._body() if self._inside else self._outside()
            if step is None:
                return pieces
            pieces += step

    def _outside(self) -> list[Piece] | None:
        at = self._held.find(OPEN)
        if at >= 0:
            words, self._held = self._held[:at], self._held[at + len(OPEN) :]
            self._inside, self._searched = True, 0
            return self._words.add(words)
        keep = len(self._held) - overlap(self._held, (OPEN,))
        words, self._held = self._held[:keep], self._held[keep:]
        return self._words.add(words) if words else None

    def _body(self) -> list[Piece] | None:
        at = self._held.find(CLOSE, self._searched)
        if at < 0:
            self._searched = max(self._searched, len(self._held) - len(CLOSE) + 1)
            return None
        body = self._held[:at]
        calls = read_calls(body)
        if calls is not None:
            self._inside, self._held = False, self._held[at + len(CLOSE) :]
            return self._called(list[Piece](calls))
        scan = JsonEnd()
        if scan.find(body) < 0 and scan.in_string:
            self._searched = at + len(CLOSE)  # the mark is a part of an argument
            return []
        return self._broken()

    def _called(self, calls: list[Piece]) -> list[Piece]:
        self._words.call()
        return calls

    def _broken(self) -> list[Piece]:
        """What follows the opening mark is no call: the mark is words, and the rest is looked at anew."""
        self._inside = False
        return self._words.add(OPEN)
