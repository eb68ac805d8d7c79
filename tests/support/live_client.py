"""A client of a live mesh: completions by token ids, whole or as streams that a test reads step by step."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

TRACE = {"X-PDD-Trace": "1"}


@dataclass
class Answer:
    """What came of one choice. `ids` are the generated ones, the one that ended it included."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    stop: int | str | None = None
    prompt: list[int] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    pdd: Mapping[str, Any] = field(default_factory=dict)
    logprobs: list[float] = field(default_factory=list)
    error: Mapping[str, Any] | None = None
    done: bool = False

    @property
    def cached(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])

    @property
    def pipeline(self) -> str:
        return str(self.pdd["pipeline"])

    @property
    def owners(self) -> dict[str, int]:
        """Ids drawn by each role."""
        return dict(self.pdd["tokens_by_owner"])

    def take(self, body: Mapping[str, Any]) -> None:
        """A whole body, or one chunk of a stream."""
        if body.get("error"):
            self.error = body["error"]
        self.prompt += body.get("prompt_token_ids") or ()
        for choice in body.get("choices", ()):
            self.text += choice.get("text", "")
            self.ids += choice.get("token_ids") or ()
            self.prompt += choice.get("prompt_token_ids") or ()
            if choice.get("logprobs"):
                self.logprobs += choice["logprobs"]["token_logprobs"]
            if choice.get("finish_reason"):
                self.finish = choice["finish_reason"]
                self.stop = choice.get("stop_reason")
        self.usage = body.get("usage") or self.usage
        self.pdd = {**self.pdd, **(body.get("pdd") or {})}


class Refused(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.error = body["error"]
        self.headers = headers


class Client:
    """The router's API. Every request asks for ids and trace."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=4)
        self.http = httpx.AsyncClient(base_url=url, timeout=60.0, limits=limits, trust_env=False)

    async def close(self) -> None:
        await self.http.aclose()

    async def complete(
        self,
        prompt: Sequence[int] | str,
        max_tokens: int,
        *,
        without: str = "",
        **fields: Any,
    ) -> Answer:
        """One whole answer. Raises Refused."""
        response = await self.http.post(
            "/v1/completions", json=_body(prompt, max_tokens, fields), headers=_headers(without, fields)
        )
        body = response.json()
        if response.status_code != 200:
            raise Refused(response.status_code, body, response.headers)
        answer = Answer(done=True)
        answer.take(body)
        return answer

    @contextlib.asynccontextmanager
    async def stream(
        self,
        prompt: Sequence[int] | str,
        max_tokens: int,
        *,
        without: str = "",
        **fields: Any,
    ) -> AsyncIterator[LiveStream]:
        """A stream that is open; leaving it before its end drops the connection. Raises Refused."""
        body = _body(prompt, max_tokens, fields) | {
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with self.http.stream(
            "POST", "/v1/completions", json=body, headers=_headers(without, fields)
        ) as response:
            if response.status_code != 200:
                raise Refused(
                    response.status_code, msgspec.json.decode(await response.aread()), response.headers
                )
            yield LiveStream(response)

    async def streamed(
        self,
        prompt: Sequence[int] | str,
        max_tokens: int,
        *,
        without: str = "",
        **fields: Any,
    ) -> Answer:
        """One answer, read from a stream to its end."""
        async with self.stream(prompt, max_tokens, without=without, **fields) as stream:
            return await stream.rest()


class LiveStream:
    """The events of one stream, gathered in `answer`."""

    def __init__(self, response: httpx.Response) -> None:
        self.answer = Answer()
        self._bytes = response.aiter_bytes()
        self._rest = b""

    async def step(self) -> bool:
        """Take the next event; False at the end."""
        while True:
            event, ended, rest = self._rest.partition(b"\n\n")
            if not ended:
                more = await anext(self._bytes, b"")
                if not more:
                    return False
                self._rest += more
                continue
            self._rest = rest
            if event == b"data: [DONE]":
                self.answer.done = True
                return False
            if event.startswith(b"data: "):
                self.answer.take(msgspec.json.decode(event[6:]))
                return True

    async def ids(self, count: int) -> None:
        """Read until so many ids have come."""
        while len(self.answer.ids) < count and await self.step():
            pass

    async def rest(self) -> Answer:
        while await self.step():
            pass
        return self.answer


def _body(prompt: Sequence[int] | str, max_tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    given = prompt if isinstance(prompt, str) else list(prompt)
    body = {"prompt": given, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": True, **fields}
    body.pop("parent", None)
    return body


def _headers(without: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """`parent` among the fields is the trace context."""
    more = {"X-PDD-Without": without, "traceparent": fields.get("parent", "")}
    return TRACE | {name: value for name, value in more.items() if value}
