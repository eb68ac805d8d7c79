"""The router benchmark's client: it counts what it is sent however it is cut, and an error is one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.router.bare import Bare
from benchmarks.router.client import Client, Connection, chat

HEAD = b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 01:00:00 GMT\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" one two"},"finish_reason":null}]}\n\n'
ANSWER = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(EVENT), EVENT) for _ in range(3)) + b"0\r\n\r\n"
MESSAGES = [{"role": "user", "content": "Hello there"}]


class Sink:
    """A transport that nothing comes back from."""

    def write(self, _data: bytes) -> None: ...


async def told(pieces: list[bytes]) -> Any:
    connection = Connection(lambda _tokens, _events: None)
    connection.connection_made(Sink())  # type: ignore[arg-type]
    answer = connection.ask(b"request", keep=True)
    for piece in pieces:
        connection.data_received(piece)
    return await answer


@pytest.mark.parametrize("cut", [len(ANSWER), len(HEAD), len(HEAD) + 4 + len(EVENT) + 2])
async def test_tokens_are_counted_however_the_answer_comes(cut: int) -> None:
    one = await told([ANSWER[:cut], ANSWER[cut:-3], ANSWER[-3:]])
    assert (one.tokens, one.events) == (6, 3)
    assert one.text() == " one two" * 3
    assert one.first > one.sent


async def test_an_error_is_no_answer() -> None:
    with pytest.raises(RuntimeError, match="429"):
        await told([b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"])


async def test_the_bare_server_streams_what_is_asked_for() -> None:
    counted: list[int] = []
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    client = Client("127.0.0.1", server.sockets[0].getsockname()[1], lambda tokens, _: counted.append(tokens))
    async with server:
        for tokens in (5, 3):
            assert (await client.ask(chat(MESSAGES, tokens))).tokens == tokens
        assert (await client.ask(chat([{"role": "user", "content": "x" * 300_000}], 2))).tokens == 2
        client.close()
    assert sum(counted) == 10
