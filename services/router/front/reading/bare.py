"""Calls as bare JSON: Llama 3 writes `{"name": ..., "parameters": {...}}`, several apart by `;`, sometimes
after `<|python_tag|>`."""

from __future__ import annotations

from services.router.front.reading.json_text import JsonEnd, read_calls
from services.router.front.reading.overlap import overlap
from services.router.front.reading.pieces import Piece
from services.router.front.reading.words import Words

TAG = "<|python_tag|>"
_KEYS = ("name", "type", "function", "parameters", "arguments", "id")
_BETWEEN = " \t\r\n;,"


class BareReader:
    """A call begins a line and names a tool that was offered; any other JSON is words."""

    thinking = False

    def __init__(self, tools: frozenset[str]) -> None:
        """`tools`: names that were offered."""
        self._tools = tools
        self._words = Words()
        self._held = ""
        self._before = ""  # what vanishes if a call follows: tags, separators
        self._fresh = True  # a call may begin here
        self._called = False  # a call has just ended
        self._scan: JsonEnd | None = None  # inside what may be a call

    def add(self, text: str) -> list[Piece]:
        """What is certain after this text."""
        self._held += text
        return self._run()

    def end(self) -> list[Piece]:
        """What was held back is words, but for separators after the last call."""
        pieces = self._run()
        rest = self._before + self._held
        if not (self._called and not rest.strip(_BETWEEN)):
            pieces += self._words.add(rest)
        self._held = self._before = ""
        return pieces + self._words.end()

    def _run(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._held:
            step = self._object() if self._scan is not None else self._line()
            if step is None:
                break
            pieces += step
        return pieces

    def _line(self) -> list[Piece] | None:
        """Outside an object; None: more text is needed."""
        if not self._fresh:
            return self._to_next_line()
        body = self._held.lstrip(_BETWEEN if self._called else " \t\r\n")
        self._before += self._held[: len(self._held) - len(body)]
        self._held = body
        if body.startswith(TAG):
            self._before, self._held = self._before + TAG, body[len(TAG) :]
            return []
        verdict = _may_be_call(body) if body.startswith("{") else None if TAG.startswith(body) else False
        if verdict is None:
            return None
        if verdict:
            self._scan = JsonEnd()
            return []
        return self._say(0, fresh=False)

    def _to_next_line(self) -> list[Piece] | None:
        tag, line = self._held.find(TAG), self._held.find("\n")
        places = [at for at in (tag, line + 1 if line >= 0 else -1) if at >= 0]
        if places:
            return self._say(min(places), fresh=True)
        keep = len(self._held) - overlap(self._held, (TAG,))
        return self._say(keep, fresh=False) if keep else None

    def _object(self) -> list[Piece] | None:
        end = self._scan.find(self._held) if self._scan is not None else -1
        if end < 0:
            return None
        self._scan = None
        calls = read_calls(self._held[:end])
        if not calls or any(call.name not in self._tools for call in calls):
            return self._say(end, fresh=False)
        self._before, self._held = "", self._held[end:]
        self._fresh = self._called = True
        self._words.call()
        return list[Piece](calls)

    def _say(self, size: int, *, fresh: bool) -> list[Piece]:
        """So many of the held characters are words. `fresh`: a call may begin after them."""
        text, self._before = self._before + self._held[:size], ""
        self._held = self._held[size:]
        self._fresh, self._called = fresh, False
        return self._words.add(text)


def _may_be_call(text: str) -> bool | None:
    """Whether an object's first key is one that calls begin with; None: the key has not come."""
    key = text[1:].lstrip()
    if not key:
        return None
    if not key.startswith('"'):
        return False
    name, closed, _ = key[1:].partition('"')
    if closed:
        return name in _KEYS
    return None if any(one.startswith(name) for one in _KEYS) else False
