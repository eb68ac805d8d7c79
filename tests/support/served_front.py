"""The router's HTTP app behind a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from shared.runtime.web import WebServer
from tests.support.front_door import Door


@contextlib.asynccontextmanager
async def serving(door: Door, **bounds: float) -> AsyncIterator[int]:
    """The door behind a socket; its port. At the end no task is left."""
    before = asyncio.all_tasks()
    server = WebServer(
        door.app,
        "127.0.0.1",
        0,
        drain=1,
        max_header=int(bounds.get("max_header", 65536)),
        head_timeout=bounds.get("head_timeout", 60.0),
        slow_client=bounds.get("slow_client", 30.0),
    )
    port = await server.start()
    try:
        yield port
    finally:
        await server.stop()
        left = asyncio.all_tasks() - before
        assert not left, left
        assert not door.generator.live
