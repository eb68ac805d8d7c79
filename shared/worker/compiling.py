"""Prepares grammars in a thread of their own, so that no step waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from shared.engine.grammar import Grammars
from shared.errors import BadGrammar


class Compiling:
    """A `Gate`. Loop thread only."""

    def __init__(self, grammars: Grammars, wake: Callable[[], None]) -> None:
        """`wake`: called, in the loop, when a grammar has become ready."""
        self._grammars = grammars
        self._wake = wake
        self._running: dict[str, asyncio.Task[None]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")

    def ready(self, grammar: str) -> bool:
        """Whether ids can be drawn under it, or surely never; begins its preparation where it has not."""
        if self._grammars.known(grammar):
            return True
        if grammar not in self._running:
            self._running[grammar] = asyncio.get_running_loop().create_task(self._prepare(grammar))
        return False

    async def close(self) -> None:
        """Wait for what runs, and begin nothing more."""
        await asyncio.gather(*self._running.values())
        self._thread.shutdown(wait=False)

    async def _prepare(self, grammar: str) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._compile, grammar)
        finally:
            del self._running[grammar]
            self._wake()

    def _compile(self, grammar: str) -> None:
        try:
            self._grammars.compiled(grammar)
        except BadGrammar:
            return  # remembered: the draw fails with it
