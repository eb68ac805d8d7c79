"""The router's HTTP face over real sockets: uvicorn, the official client, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from services.router.front.keys import read_keys
from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.requests import Broken, Done, Tokens
from shared.errors import RequestFailed
from shared.policy.config import RouterPolicy
from shared.wire.messages import FinishReason, Role
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import MODEL, Door, ask
from tests.support.served_front import serving
from tests.support.small_tokenizer import small_tokenizer

KEY = "key-of-acme"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "the question"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(small_tokenizer(Path(tmp_path_factory.mktemp("small")) / "model"))


@contextlib.asynccontextmanager
async def client_of(port: int, key: str = KEY) -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
    async with client:
        yield client


@contextlib.asynccontextmanager
async def raw(
    port: int, data: bytes, *, buffer: int = 0
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A plain connection on which `data` was sent; dropped at the end. `buffer`: bytes it receives unread."""
    plain = socket.socket()
    if buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=plain)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def socket_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    assert isinstance(writer.transport, asyncio.Transport)
    return writer.transport


def request_bytes(stream: bool = True) -> bytes:
    body = json.dumps(ask(stream=stream, skip_special_tokens=False)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_the_official_client(tokenizer: Tokenizer) -> None:
    text = "hello 😀 world"
    trace = {"pipeline": "P-RLD-MD"}
    door = Door(
        tokenizer,
        FakeGenerator(says(*tokenizer.encode(text), cached=9, trace=trace)),
        keys=read_keys(f"acme {KEY}"),
    )
    async with serving(door) as port, client_of(port) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        whole = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            n=2,
            logprobs=True,
            top_logprobs=2,
            extra_body={"min_tokens": 1, "top_k": 5},
            extra_headers={"X-PDD-Trace": "1", "X-Request-Id": "mine"},
        )
        assert whole._request_id == "mine"
        assert [choice.message.content for choice in whole.choices] == [text, text]
        assert whole.choices[0].logprobs is not None
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens == 9
        assert [one["pipeline"] for one in whole.model_extra["pdd"]["choices"]] == ["P-RLD-MD"] * 2  # type: ignore[index]
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            stream=True,
            stop=["ld"],
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said == "hello 😀 wor"
        assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        completion = await client.completions.create(model=MODEL, prompt=["the", "time"], max_tokens=2)
        assert [choice.index for choice in completion.choices] == [0, 1]
        assert [choice.finish_reason for choice in completion.choices] == ["length", "length"]


async def test_the_official_clients_errors(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, keys=read_keys(f"acme {KEY}"))
    async with serving(door) as port:
        async with client_of(port, "nobody") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with client_of(port) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1)
            assert caught.value.param == "temperature"
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="other", messages=MESSAGES)
            with pytest.raises(openai.InternalServerError) as refused:
                await client.embeddings.create(model=MODEL, input="x")
            assert refused.value.status_code == 501
            asked = asyncio.ensure_future(
                client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            )
            (stream,) = await door.generator.started()
            stream.tokens([40])
            stream.push(Broken(RequestFailed("worker p-1 was lost")))
            with pytest.raises(openai.APIError, match="p-1 was lost"):
                async for _ in await asked:
                    pass


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [0, 2])
async def test_a_closed_socket_ends_the_request(tokenizer: Tokenizer, stream: bool, tokens: int) -> None:
    door = Door(tokenizer)
    async with serving(door) as port:
        async with raw(port, request_bytes(stream)) as (reader, _):
            (one,) = await door.generator.started()
            if tokens:
                one.tokens([40] * tokens)
                if stream:
                    await reader.readuntil(b"\n\n")
        await asyncio.wait_for(one.ended.wait(), 5)
        assert one.cancelled


async def test_three_hundred_dropped_clients_leave_nothing(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer)
    async with serving(door) as port:
        async with contextlib.AsyncExitStack() as clients:
            for _ in range(300):
                await clients.enter_async_context(raw(port, request_bytes()))
            streams = await door.generator.started(300)
            for at, one in enumerate(streams):
                if at % 2:
                    one.tokens([40])
        await asyncio.wait_for(asyncio.gather(*(one.ended.wait() for one in streams)), 5)
        assert not door.generator.live
        door.generator.script = says(5)
        async with client_of(port) as client:
            await client.completions.create(model=MODEL, prompt="the")


async def test_a_client_that_reads_nothing_loses_its_connection(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, policy=RouterPolicy(slow_client=0.2))
    (mark,) = tokenizer.encode("<|im_start|>")  # the longest text of an id
    async with serving(door) as port, raw(port, request_bytes(), buffer=4096) as (reader, writer):
        socket_of(writer).pause_reading()
        (one,) = await door.generator.started()
        at = len(one.request.ids)
        while not one.over:
            one.push(Tokens(at, (mark,) * 5_000, None, Role.MAIN))
            at += 5_000
            await asyncio.sleep(0)
        assert one.cancelled
        socket_of(writer).resume_reading()
        assert b"[DONE]" not in await rest_of(reader)


async def test_a_whole_answer_that_nobody_reads(tokenizer: Tokenizer) -> None:
    """The app is done when the answer is handed over; the connection does not wait for ever."""
    door = Door(tokenizer, FakeGenerator(says(5)), max_context=1_000_000)
    async with serving(door, slow_client=0.1) as port:
        body = json.dumps({"prompt": "hello world" * 5000, "echo": True, "n": 64, "max_tokens": 1}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        async with raw(port, head.encode() + body, buffer=4096) as (reader, writer):
            socket_of(writer).pause_reading()
            await door.generator.started(64)
            await asyncio.sleep(0.5)  # the time of not reading is what is tested
            socket_of(writer).resume_reading()
            assert b"usage" not in await rest_of(reader)


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What a connection still brings before it ends, in whatever way."""
    got = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := await asyncio.wait_for(reader.read(1 << 20), 5):
            got += data
    return bytes(got)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * 3000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * 3000,
        b"GET /" + b"y" * 3000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 600 + b"\r\n",
    ],
    ids=["one header", "unfinished", "line", "many"],
)
async def test_a_head_that_is_too_long(tokenizer: Tokenizer, head: bytes) -> None:
    async with serving(Door(tokenizer), max_header=2048) as port, raw(port, head) as (reader, _):
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_head_that_does_not_come(tokenizer: Tokenizer) -> None:
    async with serving(Door(tokenizer), head_timeout=0.05) as port:
        for start in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: x\r\n"):
            async with raw(port, start) as (reader, _):
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_connection_serves_many_requests_with_large_bodies(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, FakeGenerator(says(5)), max_context=1_000_000)
    async with serving(door, max_header=2048, head_timeout=0.2) as port:
        body = json.dumps({"prompt": [40] * 20_000, "max_tokens": 1}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        async with raw(port, b"") as (reader, writer):
            for _ in range(3):
                writer.write(head + body)
                answer = await asyncio.wait_for(reader.readuntil(b"}}}"), 5)
                assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "data", [b"\x00\x01\x02", b"NONSENSE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\xff" * 100_000]
)
async def test_bytes_that_are_no_http_harm_nobody(tokenizer: Tokenizer, data: bytes) -> None:
    door = Door(tokenizer, FakeGenerator(says(5)))
    async with serving(door) as port:
        async with raw(port, data) as (reader, _):
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer.startswith(b"HTTP/1.1 4")
        async with client_of(port) as client:
            await client.completions.create(model=MODEL, prompt="the")


async def test_a_stream_goes_on_while_a_long_text_is_tokenized(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, max_context=100_000_000)
    async with serving(door) as port, client_of(port) as client:
        asked = asyncio.ensure_future(
            client.completions.create(model=MODEL, prompt="the", stream=True, max_tokens=64)
        )
        (one,) = await door.generator.started()
        long = asyncio.ensure_future(client.completions.create(model=MODEL, prompt="hello world, " * 80_000))
        at, gaps, last = len(one.request.ids), [], asyncio.get_running_loop().time()
        one.tokens([40])
        stream = await asked
        while len(door.generator.streams) < 2:
            at += 1
            one.tokens([40], start=at)
            await anext(stream)
            now = asyncio.get_running_loop().time()
            gaps.append(now - last)
            last = now
        assert len(gaps) > 20
        assert max(gaps) < sum(gaps) / 2  # tokenized in the loop, one gap would be nearly all of the time
        for each in door.generator.streams:
            each.push(Done(FinishReason.LENGTH, len(each.request.ids), 0, {}))
        await long
        await stream.close()
