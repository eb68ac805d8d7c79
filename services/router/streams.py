"""Joins the HTTP side to the core: each request's events go to its stream. Loop thread only, no sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from services.router.requests import Broken, Done, GenerationRequest, RequestEvent
from shared.wire.messages import Rid


class Submitter(Protocol):
    """The part of the core that requests need."""

    def submit(self, now: float, request: GenerationRequest) -> Rid: ...

    def cancel(self, now: float, rid: Rid) -> None: ...

    def stop_at(self, now: float, rid: Rid, at: int) -> None: ...

    def take_events(self) -> list[tuple[Rid, RequestEvent]]: ...


class LiveStream:
    """One request in the core: events wait here until they are taken."""

    def __init__(self, streams: Streams, rid: Rid, wake: Callable[[], None]) -> None:
        self.rid = rid
        self._streams = streams
        self._wake = wake
        self._waiting: list[RequestEvent] = []

    def put(self, event: RequestEvent) -> None:
        """An event of this request."""
        self._waiting.append(event)
        self._wake()

    def take(self) -> list[RequestEvent]:
        """The events that wait, in order."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def cancel(self) -> None:
        """End the request now; no event follows."""
        self._waiting.clear()
        self._streams.cancel(self.rid)

    def stop_at(self, at: int) -> None:
        """The answer ends at this absolute log length."""
        self._streams.stop_at(self.rid, at)


class Streams:
    """All live requests. `perform` sends what a call has left in the core's outbox."""

    def __init__(self, core: Submitter, perform: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._core = core
        self._perform = perform
        self._clock = clock
        self._live: dict[Rid, LiveStream] = {}

    def __len__(self) -> int:
        return len(self._live)

    def start(self, request: GenerationRequest, wake: Callable[[], None]) -> LiveStream:
        """Submit a request. Raises ApiError where it is refused."""
        now = self._clock()
        rid = self._core.submit(now, request)
        stream = self._live[rid] = LiveStream(self, rid, wake)
        self._perform(now)
        return stream

    def cancel(self, rid: Rid) -> None:
        """The client has gone."""
        if self._live.pop(rid, None) is not None:
            now = self._clock()
            self._core.cancel(now, rid)
            self._perform(now)

    def stop_at(self, rid: Rid, at: int) -> None:
        """A stop string was found."""
        if rid in self._live:
            now = self._clock()
            self._core.stop_at(now, rid, at)
            self._perform(now)

    def deliver(self) -> None:
        """Hand out what the core has to tell; called after every event in it."""
        for rid, event in self._core.take_events():
            stream = self._live.get(rid)
            if stream is None:
                continue
            if isinstance(event, Done | Broken):
                del self._live[rid]
            stream.put(event)
