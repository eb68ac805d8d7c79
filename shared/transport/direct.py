"""Reads of a connection that carries chunks, past the event loop's own: one call takes a chunk's end and the
next chunk's head.

The loop's transport keeps the socket's other half and its end; a second descriptor of the same socket is read
here. Knows no frames: only where the next bytes belong, part after part.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

_TURN = 2 << 20
"""Bytes taken in one go at most, then the loop gets its turn."""


class DirectReads:
    """Reads until `stop`. `buffers` says where the next bytes belong, `updated` is told how many came and
    says whether `on_bytes` is to be called; `on_turn` follows after the last call of one turn. All may stop
    or hold the reads. `on_end` is called once, where the other side has closed (""), with the system's
    error, or after one of these failed."""

    def __init__(
        self,
        descriptor: int,
        buffers: Callable[[], Sequence[memoryview]],
        updated: Callable[[int], bool],
        on_bytes: Callable[[], None],
        on_turn: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._descriptor = os.dup(descriptor)
        self._buffers = buffers
        self._updated = updated
        self._on_bytes = on_bytes
        self._on_turn = on_turn
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._told = False
        self.hold(False)

    def hold(self, held: bool) -> None:
        """Read no more for the moment, or again."""
        if self._descriptor < 0 or held is not self._reading:
            return
        self._reading = not held
        if held:
            self._loop.remove_reader(self._descriptor)
        else:
            self._loop.add_reader(self._descriptor, self._read)

    def stop(self) -> None:
        """Read no more; the socket ends with the loop's transport."""
        if self._descriptor >= 0:
            self.hold(True)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        end: str | None = "a fault of this side"
        try:
            end = self._take()
            if self._told and self._descriptor >= 0:
                self._told = False
                self._on_turn()
        finally:
            if end is not None and self._descriptor >= 0:
                self.stop()
                self._on_end(end)

    def _take(self) -> str | None:
        """What is here, for one turn; why the connection has ended, where it has."""
        left = _TURN
        while left > 0 and self._reading:
            places = self._buffers()
            try:
                count = os.readv(self._descriptor, places)
            except BlockingIOError:
                return None
            except OSError as error:
                return error.strerror or type(error).__name__
            if not count:
                return ""
            if self._updated(count):
                self._told = True
                self._on_bytes()
            if count < len(places[0]):  # no more is here
                return None
            left -= count
        return None
