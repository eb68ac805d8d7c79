"""uvicorn's HTTP protocol with bounds that it leaves open: bytes and time of a request's head, time of a
slow reader.

It also offers the application a way to drop a connection (`ABORT` among the scope's extensions): closing
one waits for a client that does not read. Knows nothing of routes.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ABORT = "pdd.abort"
"""Name of the extension: a callable without arguments."""


_GRACE = 0.1
"""Seconds after a bound is over in which what waits in the socket is still read: a process that stood still
finds its timers before its sockets, and blames nobody."""


class HeadTooLarge(Exception):
    """Raised inside the parser's callback; the parser turns it into its own error."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. The bounds are set on a subclass: see `bounded_http`."""

    max_header: ClassVar[int] = 64 << 10
    head_timeout: ClassVar[float] = 60.0
    slow_client: ClassVar[float] = 30.0

    _in_head = True
    _head_bytes = 0  # of the present head, as received
    _named_bytes = 0  # of its line and headers, as parsed
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            self._head_bytes = 0
        elif self._head_bytes > self.max_header:
            self._refuse()
        elif self._head_bytes and self._head_timer is None:
            self._await_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._named_bytes = 0
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        self._name(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._name(len(name) + len(value) + 4)  # with colon, space and line end
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._named_bytes > self.max_header:
            self._refuse()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.slow_client, self._reader_late)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(_GRACE, self._idle_too_long)

    def _idle_too_long(self) -> None:
        super().timeout_keep_alive_handler()
        self._write_timer = self._write_timer or self.loop.call_later(self.slow_client, self.transport.abort)

    def _reader_late(self) -> None:
        self._write_timer = self.loop.call_later(_GRACE, self.transport.abort)

    def _name(self, size: int) -> None:
        self._named_bytes += size
        if self._named_bytes > self.max_header:
            raise HeadTooLarge

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout, self._head_late)

    def _head_late(self) -> None:
        self._head_timer = self.loop.call_later(_GRACE, self._head_over)

    def _head_over(self) -> None:
        self._head_timer = None
        if self._in_head and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()

    def _refuse(self) -> None:
        text = f"the request's line and headers have more than {self.max_header} bytes".encode()
        head = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
        size = str(len(text)).encode()
        self.transport.write(head + b"content-length: " + size + b"\r\nconnection: close\r\n\r\n" + text)
        self.transport.close()

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = None


def bounded_http(*, max_header: int, head_timeout: float, slow_client: float) -> type[BoundedHttp]:
    """The protocol with these bounds. `max_header`: bytes of a request's line and headers; `head_timeout`:
    seconds until they are there; `slow_client`: seconds that written bytes may wait for the client.
    """

    class Bounded(BoundedHttp):
        pass

    Bounded.max_header = max_header
    Bounded.head_timeout = head_timeout
    Bounded.slow_client = slow_client
    return Bounded
