"""The router's picture as server-sent events: made once per tick for all who watch, and only while any do.

A viewer has no queue. One that reads slowly gets the newest picture whenever it has read the last one; one
that does not read at all is dropped by the server's own bound for slow clients.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

EVERY = 1.0
"""Seconds between two pictures."""

MOST_VIEWERS = 8

BYE = b"event: bye\ndata: {}\n\n"
"""The router is shutting down, or the viewer's session is over."""


class Feed:
    """All viewers of one router. `take`: the picture as JSON, without line breaks."""

    def __init__(
        self, take: Callable[[], bytes], *, every: float = EVERY, most_viewers: int = MOST_VIEWERS
    ) -> None:
        self._take = take
        self._every = every
        self._closed = asyncio.Event()
        self._tick = -1
        self._frame = b""
        self.most_viewers = most_viewers
        self.viewers = 0
        self.made = 0
        """Pictures so far."""

    @property
    def full(self) -> bool:
        """Whether no viewer more may come."""
        return self.viewers >= self.most_viewers

    def close(self) -> None:
        """End every stream, and those that come later at once."""
        self._closed.set()

    async def events(self, seconds: float) -> AsyncIterator[bytes]:
        """One viewer's events, for at most so many seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._closed.is_set() and loop.time() < end:
            tick = int(loop.time() / self._every)
            yield self._at(tick)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(end, (tick + 1) * self._every)):
                    await self._closed.wait()
        yield BYE

    def _at(self, tick: int) -> bytes:
        """The picture of one tick, made by the first who asks."""
        if tick != self._tick:
            self._tick = tick
            self._frame = b"event: picture\ndata: " + self._take() + b"\n\n"
            self.made += 1
        return self._frame


class Watching(StreamingResponse):
    """One viewer's stream, counted from its first byte to its end."""

    def __init__(self, feed: Feed, seconds: float, headers: dict[str, str]) -> None:
        super().__init__(feed.events(seconds), headers=headers, media_type="text/event-stream")
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._feed.viewers += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.viewers -= 1
