"""Thoughts between `<think>` and `</think>` at the start of an answer, apart from the answer."""

from __future__ import annotations

from services.router.front.reading.overlap import overlap
from services.router.front.reading.pieces import Piece, Reader, Thought

OPEN = "<think>"
CLOSE = "</think>"


class ThinkReader:
    """Hands what follows the thought to another reader. White space around the marks belongs to the
    format."""

    def __init__(self, inner: Reader, *, opened: bool) -> None:
        """`opened`: the prompt ends with the opening mark, so that the answer begins inside the thought."""
        self._inner = inner
        self._opened = opened
        self._held = ""
        self._state = "start"  # start | inside | gap (after the closing mark) | answer
        self._begun = False  # the thought has text

    @property
    def thinking(self) -> bool:
        """Whether the text just taken belongs to a thought."""
        return self._state == "inside" or (self._state == "start" and self._opened)

    def add(self, text: str) -> list[Piece]:
        """What is certain after this text."""
        if self._state == "answer":
            return self._inner.add(text)
        self._held += text
        if self._state == "start":
            self._start()
        pieces = self._inside() if self._state == "inside" else []
        if self._state == "gap":
            self._held = self._held.lstrip()
            self._state = "answer" if self._held else "gap"
        if self._state == "answer":
            held, self._held = self._held, ""
            pieces += self._inner.add(held)
        return pieces

    def end(self) -> list[Piece]:
        """What was held back; a thought may stay without its end."""
        held, self._held = self._held, ""
        pieces: list[Piece] = []
        if self.thinking:
            pieces += [Thought(held)] if held.strip() else []
        elif self._state == "start":
            pieces += self._inner.add(held)
        return pieces + self._inner.end()

    def _start(self) -> None:
        body = self._held.lstrip()
        if body.startswith(OPEN):
            self._held, self._state = body[len(OPEN) :], "inside"
        elif not OPEN.startswith(body):
            self._state = "inside" if self._opened else "answer"

    def _inside(self) -> list[Piece]:
        if not self._begun:
            self._held = self._held.lstrip()
        at = self._held.find(CLOSE)
        if at >= 0:
            thought, self._held = self._held[:at].rstrip(), self._held[at + len(CLOSE) :]
            self._state = "gap"
        else:
            sure = len(self._held) - overlap(self._held, (CLOSE,))
            sure = len(self._held[:sure].rstrip())
            thought, self._held = self._held[:sure], self._held[sure:]
        self._begun = self._begun or bool(thought)
        return [Thought(thought)] if thought else []
