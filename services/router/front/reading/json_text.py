"""Calls as JSON: where an object ends, and whether it is a call. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw

from services.router.front.depth import LEVELS, deeper
from services.router.front.reading.pieces import ToolCall

_NONE = Raw(b"")
_MARKS = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
_IN_STRING = re.compile(r'\\.|"', re.DOTALL)
_IN_JSON = re.compile(r"[^\s\w,:.+-]")
_AROUND = re.compile(r"\S")


class JsonEnd:
    """Finds where the object or list that a growing text begins with ends."""

    def __init__(self) -> None:
        self.in_string = False
        """Whether the text, so far, ends inside a string."""
        self._depth = 0
        self._at = 0

    def find(self, text: str) -> int:
        """The place after the closing bracket; -1: not there yet. `text` is what it was, or longer."""
        for mark in _MARKS.finditer(text, self._at):
            self._at = mark.end()
            sign = mark.group()
            if sign == '"':
                self.in_string = not self.in_string
            elif self.in_string or sign[0] == "\\":
                continue
            elif sign in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return self._at
        if self._at < len(text):
            self._at = len(text) - text.endswith("\\")
        return -1


class JsonWhole:
    """Finds where the object or list that stands alone at a place of a growing text is over, or can no longer
    be one: at the first sign that none has there."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._depth = 0
        self._begun = self._in_string = False
        self._end = -1

    def end(self, text: str) -> int:
        """The place of that sign; -1: it is not there yet. `text` is what it was, or longer."""
        while self._end < 0:
            pattern = _IN_STRING if self._in_string else _IN_JSON if self._depth else _AROUND
            mark = pattern.search(text, self._at)
            if mark is None:
                # A last backslash takes the next character with it.
                self._at = max(self._at, len(text) - text.endswith("\\"))
                break
            self._take(mark)
        return self._end

    def _take(self, mark: re.Match[str]) -> None:
        sign = mark.group()
        if self._in_string:
            self._in_string = sign != '"'
        elif sign in ("{", "[") and (self._depth or not self._begun):
            self._depth, self._begun = self._depth + 1, True
        elif sign in ("}", "]") and self._depth:
            self._depth -= 1
        elif sign == '"' and self._depth:
            self._in_string = True
        else:
            self._end = mark.start()
        self._at = mark.end()


class _Written(msgspec.Struct):
    name: str
    arguments: Raw = _NONE
    parameters: Raw = _NONE


def read_calls(text: str) -> list[ToolCall] | None:
    """The call, or the list of calls, that a JSON text is; None: it is neither."""
    try:
        written = msgspec.json.decode(text, type=_Written | list[_Written])
        found = [_call(one) for one in (written if isinstance(written, list) else [written])]
    except (msgspec.MsgspecError, RecursionError):
        return None
    calls = [call for call in found if call is not None]
    return calls if len(calls) == len(found) else None


def _call(written: _Written) -> ToolCall | None:
    raw = bytes(written.arguments or written.parameters)
    value: Any = msgspec.json.decode(raw) if raw else None
    if isinstance(value, str):  # arguments as a text that holds the object
        raw = value.encode()
        value = msgspec.json.decode(raw) if raw.strip() else None
    if value is None:
        raw, value = b"{}", {}
    if not written.name or not isinstance(value, dict) or deeper(value, LEVELS):
        return None
    return ToolCall(written.name, raw.decode())
