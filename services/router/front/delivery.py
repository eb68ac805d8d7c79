"""Brings a generation to its client: as server-sent events, or whole. Knows nothing of fields or the core.

Headers go out with the first content, so that a request that fails before it has its true status; after them
an error is an event of the API's dialect. A client that leaves, or reads too slowly, ends the request at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import anyio
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.router.front.answer import Reply
from services.router.front.choice import Delta
from services.router.front.dialect import OPENAI, Chunk, Dialect
from services.router.front.failures import headers_of, status_of
from services.router.front.generation import Generation
from shared.errors import MeshError
from shared.runtime.bounded_http import ABORT

CLOSED = 499
"""Status, for logs and metrics, of a request whose client left."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits of one delivery."""

    keep_alive: float
    """Seconds in which the client sees nothing, until a comment is sent."""
    text_waiting: int
    """Bytes that may wait for a slow client."""
    slow_client: float
    """Seconds that bytes may wait for a slow client."""


@dataclass(slots=True)
class Outcome:
    """How a delivery ended."""

    status: int = 200
    ended: str = "crashed"  # finished | failed | left | too_slow; crashed: a fault here, it is logged


Ended = Callable[[Outcome], None]


def json_response(content: Chunk, headers: Mapping[str, str], status: int = 200) -> Response:
    """A JSON body."""
    return Response(msgspec.json.encode(content), status, dict(headers), media_type="application/json")


def error_response(error: MeshError, headers: Mapping[str, str], dialect: Dialect = OPENAI) -> Response:
    """An error with its status and headers."""
    return json_response(dialect.body(error), {**headers, **headers_of(error)}, status_of(error))


@contextlib.asynccontextmanager
async def watched(receive: Receive, generation: Generation) -> AsyncIterator[None]:
    """While this is open, a client that leaves cancels the generation; at its end nothing of it runs on."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        generation.cancel()
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def whole_answer(
    generation: Generation,
    reply: Reply,
    dialect: Dialect,
    receive: Receive,
    headers: Mapping[str, str],
    ended: Ended,
) -> Response:
    """Wait for the end; the whole answer, or the error with its status."""
    deltas: list[Delta] = []
    outcome = Outcome()
    try:
        async with watched(receive, generation):
            while True:
                deltas += generation.absorb()
                if generation.ended:
                    break
                await generation.arrival(3600.0)
            if generation.gone:
                outcome.status, outcome.ended = CLOSED, "left"
                return Response(status_code=CLOSED)
            if generation.failure is not None:
                outcome.status, outcome.ended = status_of(generation.failure), "failed"
                return error_response(generation.failure, headers, dialect)
            answer = json_response(reply.whole(deltas), headers)
            outcome.ended = "finished"
            return answer
    finally:
        ended(outcome)


class EventStream(Response):
    """The answer as server-sent events."""

    def __init__(
        self,
        generation: Generation,
        reply: Reply,
        dialect: Dialect,
        pace: Pace,
        headers: Mapping[str, str],
        ended: Ended,
    ) -> None:
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers},
            media_type="text/event-stream; charset=utf-8",
        )
        del self.headers["content-length"]
        self._generation = generation
        self._reply = reply
        self._dialect = dialect
        self._pace = pace
        self._plain_headers = headers
        self._ended = ended
        self.answered: Callable[[int], None] = lambda _status: None
        """Told the status once, when it is certain; not where a fault here left the client none."""
        self._outcome = Outcome()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._closed = False  # the last event is in `_waiting`, or sent
        self._started = False
        self._silent_at = (
            0.0  # when the client has seen nothing for too long: ids may come that show nothing yet
        )
        self._cancel = anyio.CancelScope()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with watched(receive, self._generation):
                with self._cancel:
                    await self._run(scope, receive, send)
            if self._outcome.ended == "crashed":
                self._outcome.ended = "left"
                self._outcome.status = self._outcome.status if self._started else CLOSED
        finally:
            if self._started or self._outcome.ended != "crashed":
                self.answered(self._outcome.status)
            self._ended(self._outcome)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation, loop = self._generation, asyncio.get_running_loop()
        self._silent_at = loop.time() + self._pace.keep_alive
        while not generation.gone:
            if not self._waiting:
                await generation.arrival(max(0.0, self._silent_at - loop.time()))
                self._absorb()
                if not self._waiting and loop.time() >= self._silent_at:
                    self._put(self._dialect.silence)
            failure = generation.failure
            if failure is not None and not self._started:
                self._outcome.status = status_of(failure)
                await error_response(failure, self._plain_headers, self._dialect)(scope, receive, send)
                return
            if self._waiting:
                await self._flush(scope, send)
            if self._closed and not self._waiting:
                return

    def _absorb(self) -> None:
        """Turn what has come into events that wait to be sent."""
        if self._closed:
            return
        generation = self._generation
        for chunk in self._reply.chunks(generation.absorb()):
            self._put(self._dialect.event(chunk))
        if generation.ended and not generation.gone:
            self._closed = True
            if generation.failure is not None:
                self._outcome.ended = "failed"
                last = self._reply.failing(generation.failure)
            else:
                self._outcome.ended = "finished"
                last = self._reply.closing()
            for chunk in last:
                self._put(self._dialect.event(chunk))
            self._put(self._dialect.done)

    def _put(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    async def _flush(self, scope: Scope, send: Send) -> None:
        """Send what waits. While the client takes its time, what comes is still turned into text, and
        counted."""
        data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
        last = self._closed
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._pace.slow_client, self._give_up, scope)
        self._generation.listener = lambda: self._absorb_meanwhile(scope)
        try:
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": not last})
        finally:
            timer.cancel()
            self._generation.listener = None
            self._silent_at = loop.time() + self._pace.keep_alive

    def _absorb_meanwhile(self, scope: Scope) -> None:
        if self._generation.listener is None:
            return
        self._absorb()
        if self._waiting_bytes > self._pace.text_waiting:
            self._give_up(scope)

    def _give_up(self, scope: Scope) -> None:
        """The client reads too slowly: release the request, drop the connection."""
        self._outcome.ended = "too_slow"
        self._generation.cancel()
        self._generation.gone = True
        extension = scope.get("extensions", {}).get(ABORT)
        if extension is not None:
            extension["call"]()
        else:
            self._cancel.cancel()
