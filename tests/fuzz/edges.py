"""Which ways through the code an input takes: pairs of lines that were run one after the other.

Follows only the named files, in pure Python (`sys.settrace`), so that it runs wherever the tests do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Edge = tuple[CodeType, int, int]
"""(function, line before, line after); 0 is its beginning, -1 that it raised."""


class Edges:
    """Runs calls and tells which edges of the files they took. `suffixes`: ends of the files' names."""

    def __init__(self, suffixes: tuple[str, ...]) -> None:
        self._suffixes = suffixes
        self._followed: dict[CodeType, bool] = {}
        self._taken: set[Edge] = set()

    def of(self, call: Callable[[], object]) -> frozenset[Edge]:
        """The edges of one call. What it raises is raised here; `taken` has its edges then."""
        taken: set[Edge] = set()
        self._taken = taken
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)
        return frozenset(taken)

    @property
    def taken(self) -> frozenset[Edge]:
        """Those of the last call, whether it ended or raised."""
        return frozenset(self._taken)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        followed = self._followed.get(code)
        if followed is None:
            followed = self._followed[code] = code.co_filename.endswith(self._suffixes)
        if not followed or event != "call":
            return None
        taken, last = self._taken, 0

        def step(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "line":
                taken.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            elif event == "exception":
                taken.add((code, last, -1))
            return step

        return step
