"""Streams over the router core: submits requests, and hands the core's events to the streams that wait for
them.

All in the loop thread. `settle` performs the core's outbox; whoever else calls the core calls `deliver`
after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from services.router.requests import Broken, Done, GenerationRequest, RequestEvent
from shared.wire.messages import Rid


class RequestCore(Protocol):
    """What of the core is needed here."""

    def submit(self, now: float, request: GenerationRequest) -> Rid: ...

    def cancel(self, now: float, rid: Rid) -> None: ...

    def stop_at(self, now: float, rid: Rid, at: int) -> None: ...

    def take_events(self) -> list[tuple[Rid, RequestEvent]]: ...


class LiveGenerator:
    """The `Generator` of a running router."""

    def __init__(
        self, core: RequestCore, clock: Callable[[], float], settle: Callable[[float], None]
    ) -> None:
        self._core = core
        self._clock = clock
        self._settle = settle
        self._streams: dict[Rid, LiveStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def start(self, request: GenerationRequest, wake: Callable[[], None]) -> LiveStream:
        """Submit a request. Raises ApiError where it is refused."""
        now = self._clock()
        rid = self._core.submit(now, request)
        stream = self._streams[rid] = LiveStream(self, rid, wake)
        self._after(now)
        return stream

    def deliver(self) -> None:
        """Give the core's new events to their streams. To be called after anything that the core was told."""
        for rid, event in self._core.take_events():
            stream = self._streams.get(rid)
            if stream is None:
                continue
            if isinstance(event, Done | Broken):
                del self._streams[rid]
            stream.push(event)

    def cancel(self, rid: Rid) -> None:
        """End a request whose stream is not read any more."""
        if self._streams.pop(rid, None) is not None:
            now = self._clock()
            self._core.cancel(now, rid)
            self._after(now)

    def stop_at(self, rid: Rid, at: int) -> None:
        """End a request at a log length."""
        if rid in self._streams:
            now = self._clock()
            self._core.stop_at(now, rid, at)
            self._after(now)

    def _after(self, now: float) -> None:
        self._settle(now)
        self.deliver()


class LiveStream:
    """One request's events."""

    def __init__(self, owner: LiveGenerator, rid: Rid, wake: Callable[[], None]) -> None:
        self._owner = owner
        self._wake = wake
        self._events: list[RequestEvent] = []
        self.rid = rid

    def push(self, event: RequestEvent) -> None:
        """An event of the core."""
        self._events.append(event)
        self._wake()

    def take(self) -> list[RequestEvent]:
        """The events that wait, in order."""
        events, self._events = self._events, []
        return events

    def cancel(self) -> None:
        """End the request now; no event follows."""
        self._events = []
        self._owner.cancel(self.rid)

    def stop_at(self, at: int) -> None:
        """The answer ends at this absolute log length."""
        self._owner.stop_at(self.rid, at)
