"""Words around calls: white space that touches a call belongs to the call's format, not to the answer."""

from __future__ import annotations

from services.router.front.reading.pieces import Piece, Said


class Words:
    """Holds trailing white space back until it is known what follows. Text without a call comes out as it
    went in."""

    def __init__(self) -> None:
        self._blank = ""
        self._said = False
        self._called = False

    def add(self, text: str) -> list[Piece]:
        """More words."""
        text = self._blank + text
        body = text.rstrip()
        self._blank = text[len(body) :]
        if not body:
            return []
        if self._called and not self._said:
            body = body.lstrip()
        self._said = True
        return [Said(body)]

    def call(self) -> None:
        """A call stands here."""
        self._called = True

    def end(self) -> list[Piece]:
        """White space at the end of an answer without calls."""
        blank, self._blank = self._blank, ""
        return [Said(blank)] if blank and not self._called else []
