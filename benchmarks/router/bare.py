"""The baseline: a server that reads a request and streams so many events at once, with no router in it.

`python -m benchmarks.router.bare`: prints its port, serves until it is ended.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_tokens": (\d+)')
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'


class Bare(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        request = b"".join(self._parts)
        head = request.find(b"\r\n\r\n")
        length = _LENGTH.search(request, 0, head) if head >= 0 else None
        if length is None or len(request) < head + 4 + int(length[1]):
            return
        self._parts.clear()
        tokens = _TOKENS.search(request)
        events = _EVENT * (int(tokens[1]) if tokens else 1)
        self._transport.write(_HEAD + b"%x\r\n%s\r\n0\r\n\r\n" % (len(events), events))


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    import uvloop

    uvloop.run(_serve())


if __name__ == "__main__":
    main()
