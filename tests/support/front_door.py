"""The router's HTTP app over a fake generator, and ways to speak to it without sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message

from services.router.front.app import Front, create_app
from services.router.front.keys import Keys
from services.router.front.models import Served
from services.router.front.tokens import Tokenizer
from shared.policy.config import RouterPolicy
from shared.runtime.settings import HttpConfig
from tests.support.fake_generator import FakeGenerator

MODEL = "small"


@dataclass
class Door:
    """An app with its generator; `client` speaks to it in memory."""

    tokenizer: Tokenizer
    generator: FakeGenerator = field(default_factory=FakeGenerator)
    keys: Keys = field(default_factory=Keys)
    http: HttpConfig = field(default_factory=HttpConfig)
    policy: RouterPolicy = field(default_factory=RouterPolicy)
    state: dict[str, Any] = field(default_factory=lambda: {"ready": True, "pipelines": {"MD": "ok"}})
    sick: str = ""
    max_context: int = 4096
    others: dict[str, Tokenizer] = field(default_factory=dict)
    """Further models by name."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.app: ASGIApp = create_app(
            Front(
                generator=self.generator,
                models=[
                    Served(
                        name=name,
                        tokenizer=tokenizer,
                        max_context=lambda: self.max_context,
                        fingerprint=lambda: "fp_test",
                    )
                    for name, tokenizer in {MODEL: self.tokenizer, **self.others}.items()
                ],
                registry=self.registry,
                ready=lambda: self.state,
                healthy=lambda: self.sick,
                keys=self.keys,
                http=self.http,
                policy=self.policy,
            )
        )

    @contextlib.asynccontextmanager
    async def client(self, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://router", headers=headers
        ) as client:
            yield client

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """One request with a JSON body; underscores in header names stand for dashes."""
        async with self.client(
            **{name.replace("_", "-"): value for name, value in headers.items()}
        ) as client:
            return await client.post(path, json=body)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with self.client(**headers) as client:
            return await client.get(path)

    async def chat(self, body: dict[str, Any] | None = None, **fields: Any) -> httpx.Response:
        """A chat request: "the question", with these fields."""
        return await self.post("/v1/chat/completions", ask(**(body or {}), **fields))

    async def events(self, path: str, body: dict[str, Any], **headers: str) -> list[Any]:
        """A streamed request's events; the last is "[DONE]"."""
        response = await self.post(path, {**body, "stream": True}, **headers)
        assert response.status_code == 200, response.text
        return sse(response.text)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


def ask(**fields: Any) -> dict[str, Any]:
    """Body of a chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "the question"}], **fields}


def sse(text: str) -> list[Any]:
    """Events of a stream: JSON, comments left out; "[DONE]" as it is."""
    found: list[Any] = []
    for line in text.split("\n\n"):
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
        else:
            assert line == "" or line.startswith(": "), line
    return found


def named_events(text: str) -> list[Any]:
    """Events of a stream in which each has its type for a name; pings and comments left out."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        lines = block.split("\n")
        if block == "" or block.startswith(": ") or lines[0] == "event: ping":
            continue
        data = json.loads(lines[1].removeprefix("data: "))
        assert lines == [f"event: {data['type']}", lines[1]], block
        found.append(data)
    return found


class Wire:
    """One ASGI request by hand: the test decides when the client reads, and when it leaves."""

    def __init__(self, app: ASGIApp, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
        self.sent: list[Message] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self.arrived = asyncio.Event()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._inbox.put_nowait(
            {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        )
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
            "client": ("test", 1),
            "server": ("router", 80),
            "state": {},
        }
        self.task = asyncio.ensure_future(app(scope, self._inbox.get, self._send))

    async def _send(self, message: Message) -> None:
        await self.reading.wait()
        self.sent.append(message)
        self.arrived.set()

    def leave(self) -> None:
        """The client closes its connection."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def next(self) -> Message:
        """Wait until something more is sent; the last message."""
        await self.arrived.wait()
        self.arrived.clear()
        return self.sent[-1]

    async def end(self) -> None:
        """Wait for the app to be done with the request."""
        await asyncio.wait_for(self.task, 5)

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()
