"""A client that costs little: raw HTTP/1.1 over kept connections, times taken where bytes arrive.

Knows nothing of the router beside what every client sees.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_END = b"0\r\n\r\n"


def _nobody(tokens: int, events: int) -> None:
    """Nobody counts them."""


@dataclass(slots=True)
class Told:
    """What one request saw, by a clock in seconds; `tokens`: words, one space each, of all its `events`."""

    sent: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    events: int = 0
    stall: float = 0.0
    data: list[bytes] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Seconds to the first event."""
        return self.first - self.sent

    def text(self) -> str:
        """The answer's text (of a chat's stream; needs `keep`)."""
        said = []
        for line in b"".join(self.data).split(b"\n"):
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                said += [choice["delta"].get("content") or "" for choice in choices]
        return "".join(said)


class Connection(asyncio.Protocol):
    """One kept connection; one request at a time."""

    def __init__(self, seen: Callable[[int, int], object]) -> None:
        self._seen = seen
        self._loop = asyncio.get_running_loop()
        self._told: Told | None = None
        self._done: asyncio.Future[Told] | None = None
        self._keep = False
        self._tail = b""
        self._headed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def ask(self, request: bytes, *, keep: bool = False) -> asyncio.Future[Told]:
        """Send a whole request; the future is done with its end. `keep` its bytes."""
        self._keep = keep
        self._tail = b""
        self._headed = False
        self._done = self._loop.create_future()
        self._told = Told(time.perf_counter())
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        told = self._told
        if told is None or self._done is None:
            return
        now = time.perf_counter()
        body = data
        if not self._headed:
            if data[9:12] != b"200":
                self._fail(data)
                return
            self._headed = True
            body = data.partition(b"\r\n\r\n")[2]
        events = body.count(b"data: {")
        if events:
            told.events += events
            if not told.first:
                told.first = now
            else:
                told.stall = max(told.stall, now - told.last)
            told.last = now
            tokens = body.count(b" ") - body.count(b": ")
            told.tokens += tokens
            self._seen(tokens, events)
        if self._keep:
            told.data.append(data)
        tail = (self._tail + data)[-len(_END) :]
        self._tail = tail
        if tail == _END:
            done, self._told, self._done = self._done, None, None
            if not done.done():
                done.set_result(told)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._fail(b"connection closed")

    def _fail(self, data: bytes) -> None:
        done, self._told, self._done = self._done, None, None
        if done is not None and not done.done():
            done.set_exception(RuntimeError(data[:2000].decode("utf-8", "replace")))


class Client:
    """A pool of connections to one server."""

    def __init__(self, host: str, port: int, seen: Callable[[int, int], object] = _nobody) -> None:
        """`seen` is told of tokens and events as they arrive: each word of an answer has one space."""
        self._address = (host, port)
        self._seen = seen
        self._free: deque[Connection] = deque()
        self._all: list[Connection] = []

    async def ask(self, request: bytes, *, keep: bool = False) -> Told:
        """One request on a free connection, or a new one."""
        if self._free:
            connection = self._free.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: Connection(self._seen), *self._address)
            self._all.append(connection)
        told = await connection.ask(request, keep=keep)
        self._free.append(connection)
        return told

    async def warm(self, count: int) -> None:
        """Open connections ahead."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            _, connection = await loop.create_connection(lambda: Connection(self._seen), *self._address)
            self._all.append(connection)
            self._free.append(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            connection.transport.close()


def chat(messages: list[dict[str, str]], tokens: int, **more: Any) -> bytes:
    """A streamed chat request, as bytes on the wire."""
    body = {"model": "bench", "stream": True, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    data = json.dumps({**body, **more}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer none\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
