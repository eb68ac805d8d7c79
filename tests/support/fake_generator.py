"""A `Generator` without a mesh: streams that a test feeds by hand, or that answer by a script as an engine
would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.router.requests import Broken, Done, GenerationRequest, RequestEvent, Tokens
from shared.errors import ApiError, MeshError
from shared.wire.messages import FinishReason, Role, TokenLogprob

Script = Callable[[GenerationRequest], Sequence[RequestEvent]]


class FakeStream:
    """One request. After `stop_at` it answers Done, as the core does."""

    def __init__(self, request: GenerationRequest, wake: Callable[[], None]) -> None:
        self.request = request
        self.cancelled = False
        self.over = False
        self.stopped_at: int | None = None
        self.ended = asyncio.Event()
        """Set once the stream is over."""
        self._wake = wake
        self._events: list[RequestEvent] = []

    def push(self, *events: RequestEvent) -> None:
        """Events of the core; none after the end or a cancel."""
        for event in events:
            if not self.over:
                self._events.append(event)
                self._set_over(isinstance(event, Done | Broken))
        self._wake()

    def tokens(self, ids: Sequence[int], *, owner: Role = Role.MAIN, start: int | None = None) -> None:
        """Push ids that follow those pushed before."""
        at = len(self.request.ids) if start is None else start
        self.push(Tokens(at, tuple(ids), None, owner))

    def take(self) -> list[RequestEvent]:
        events, self._events = self._events, []
        return events

    def cancel(self) -> None:
        if not self.over:
            self.cancelled = True
            self._set_over(True)
        self._events = []

    def stop_at(self, at: int) -> None:
        if not self.over:
            self.stopped_at = at
            self.push(Done(FinishReason.STOP, at, 0, {}))

    def _set_over(self, over: bool) -> None:
        self.over = over
        if over:
            self.ended.set()


class FakeGenerator:
    """Keeps every stream. `script` answers each request at once; without one the test pushes."""

    def __init__(self, script: Script | None = None) -> None:
        self.streams: list[FakeStream] = []
        self.script = script
        self._grown = asyncio.Event()
        self.refusal: ApiError | None = None
        self.refuse_after = 0
        """Requests accepted before `refusal` is raised."""

    @property
    def live(self) -> list[FakeStream]:
        """Streams that have neither ended nor been cancelled."""
        return [stream for stream in self.streams if not stream.over]

    @property
    def requests(self) -> list[GenerationRequest]:
        return [stream.request for stream in self.streams]

    async def started(self, count: int = 1) -> list[FakeStream]:
        """All streams, once there are `count`."""
        async with asyncio.timeout(5):
            while len(self.streams) < count:
                self._grown.clear()
                await self._grown.wait()
        return self.streams

    def start(self, request: GenerationRequest, wake: Callable[[], None]) -> FakeStream:
        if self.refusal is not None and len(self.streams) >= self.refuse_after:
            raise self.refusal
        stream = FakeStream(request, wake)
        self.streams.append(stream)
        self._grown.set()
        if self.script is not None:
            stream.push(*self.script(request))
        return stream


def says(
    *ids: int, runs: int = 1, cached: int = 0, trace: Mapping[str, Any] | None = None, eos: int = 2
) -> Script:
    """A script: these ids, then eos without end; ended by a stop id or the request's length, in runs of
    `runs`."""

    def script(request: GenerationRequest) -> list[RequestEvent]:
        sampling, start = request.sampling, len(request.ids)
        drawn: list[int] = []
        reason = FinishReason.LENGTH
        while start + len(drawn) < sampling.max_pos:
            drawn.append(ids[len(drawn)] if len(drawn) < len(ids) else eos)
            if drawn[-1] in sampling.stop_ids:
                reason = FinishReason.STOP
                break
        events: list[RequestEvent] = []
        for at in range(0, len(drawn), runs):
            run = tuple(drawn[at : at + runs])
            best = tuple((token + 1, -2.0 - token) for token in range(max(0, sampling.logprobs)))
            each = tuple(TokenLogprob(-token / 8, best) for token in run) if sampling.logprobs >= 0 else None
            owner = Role.RELAY if at < len(drawn) // 2 else Role.MAIN
            scores = scores_of(request) if at == 0 else None
            events.append(Tokens(start + at, run, each, owner, scores))
        return [*events, Done(reason, start + len(drawn), cached, trace or {})]

    return script


def scores_of(request: GenerationRequest) -> tuple[TokenLogprob, ...] | None:
    """What prefill says of a prompt's ids, where it was asked for: minus an eighth of each id."""
    if request.scores < 0:
        return None
    return tuple(
        TokenLogprob(-token / 8, tuple((token + 1 + rank, -1.0 - rank) for rank in range(request.scores)))
        for token in request.ids[1:]
    )


def breaks(error: MeshError, *ids: int) -> Script:
    """A script: these ids, then a failure."""

    def script(request: GenerationRequest) -> list[RequestEvent]:
        head: list[RequestEvent] = [Tokens(len(request.ids), ids, None, Role.RELAY)] if ids else []
        return [*head, Broken(error)]

    return script
