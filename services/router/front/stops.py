"""Stop strings over a text that comes in pieces. Knows nothing of tokens or requests.

The end is where a stop string is first complete, whatever the pieces; of those complete at the same character
the longest counts. Text that may still turn out to be one is held back and never lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.router.front.reading.overlap import overlap


class StopStrings:
    """Feed text, get the text that may be shown; `found` is the stop string that ended it."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include
        self._held = ""
        self.found: str | None = None

    def add(self, text: str, *, armed: bool = True) -> str:
        """Text to show now. A stop string that completes while not `armed` is plain text. Nothing follows a
        find."""
        if not self._stops or self.found is not None:
            return text if self.found is None else ""
        buffer = self._held + text
        if armed and text:
            cut = self._first(buffer, len(self._held))
            if cut is not None:
                self._held = ""
                return buffer[:cut]
        keep = overlap(buffer, self._stops)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def end(self) -> str:
        """The text that was held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _first(self, buffer: str, new: int) -> int | None:
        """Where to cut the buffer at the stop string that is complete first, its end past `new`."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = buffer.find(stop, max(0, new - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        if best is None:
            return None
        end, start, self.found = best
        return end if self._include else start
