"""One client request while it is generated: its choices over the core's streams. Knows nothing of HTTP or
JSON.

It sees the core only through `Generator` and `Stream`. All runs in the loop thread; whatever ends it (a
client that left, a failure, the end), every stream is cancelled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.router.front.choice import Choice, ChoiceRules, Delta
from services.router.front.detokenizer import Detokenizer
from services.router.front.prompts import Prompt
from services.router.front.reading.formats import Reading
from services.router.front.vocabulary import Vocabulary
from services.router.requests import GenerationRequest, RequestEvent, Tokens
from shared.errors import ApiError, MeshError, RequestFailed


class Stream(Protocol):
    """One request in the core."""

    def take(self) -> list[RequestEvent]:
        """The events that wait, in order; Done or Broken is the last one ever."""

    def cancel(self) -> None:
        """End the request now; no event follows. Harmless when it has ended."""

    def stop_at(self, at: int) -> None:
        """The answer ends at this absolute log length; Done follows. Harmless when it has ended."""


class Generator(Protocol):
    """What starts requests."""

    def start(self, request: GenerationRequest, wake: Callable[[], None]) -> Stream:
        """Start one. `wake` is called whenever events wait. Raises ApiError where the request is refused."""


@dataclass(frozen=True, slots=True)
class Job:
    """One choice to generate."""

    request: GenerationRequest
    rules: ChoiceRules
    prompt: Prompt
    skip_special: bool = True
    reading: Reading = field(default_factory=Reading)


@dataclass(slots=True)
class Times:
    """Seconds of the loop's clock; 0: not yet."""

    started: float
    first: float = 0.0
    second: float = 0.0
    last: float = 0.0
    stall: float = 0.0  # the longest time between two arrivals of ids


class Generation:
    """All choices of one client request, in order: prompt 0's n choices, prompt 1's, and so on."""

    def __init__(
        self, jobs: Sequence[Job], vocabulary: Vocabulary, clock: Callable[[], float], *, started: float
    ) -> None:
        """`started`: when the client's request came, by the same clock."""
        self.jobs = list(jobs)
        self.choices = [_choice(index, job, vocabulary) for index, job in enumerate(self.jobs)]
        self.failure: MeshError | None = None
        """Why the whole request failed."""
        self.listener: Callable[[], None] | None = None
        """Called with each wake, by the loop, in a callback of its own."""
        self.gone = False
        """Cancelled from outside: nobody reads the answer any more."""
        self.times = Times(started)
        self._clock = clock
        self._streams: list[Stream | None] = []
        self._running = len(self.choices)
        self._event = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.gone or self.failure is not None or not self._running

    def start(self, generator: Generator) -> None:
        """Submit every choice. Raises ApiError, with none left behind, where one is refused."""
        started = False
        try:
            for job in self.jobs:
                self._streams.append(generator.start(job.request, self.wake))
            started = True
        finally:
            if not started:
                self._cancel_all()

    def wake(self) -> None:
        """Events wait (or something else wants the reader's attention)."""
        self._event.set()
        if self.listener is not None:
            asyncio.get_running_loop().call_soon(self.listener)

    async def arrival(self, seconds: float) -> bool:
        """Wait until woken (True), for at most so many seconds (False)."""
        if not self._event.is_set():
            timer = asyncio.get_running_loop().call_later(seconds, self._event.set)
            try:
                await self._event.wait()
            finally:
                timer.cancel()
            self._event.clear()
            return timer.when() > asyncio.get_running_loop().time()
        self._event.clear()
        return True

    def absorb(self) -> list[Delta]:
        """Take all events that wait; what the client should see of them."""
        deltas: list[Delta] = []
        for index, choice in enumerate(self.choices):
            stream = self._streams[index]
            if stream is None:
                continue
            while not choice.ended and (events := stream.take()):
                self._mark(events)
                searching = choice.stop_at is None
                delta = choice.absorb(events)
                if delta is not None:
                    deltas.append(delta)
                if searching and choice.stop_at is not None:
                    stream.stop_at(choice.stop_at)
            if choice.ended:
                self._streams[index] = None
                self._running -= 1
            if choice.failure is not None:
                self.fail(choice.failure)
                break
        return deltas

    def fail(self, error: MeshError) -> None:
        """The whole request fails with its first failing choice."""
        if self.failure is None:
            self.failure = error if isinstance(error, ApiError) else RequestFailed(str(error))
        self._cancel_all()

    def cancel(self) -> None:
        """Nobody reads the answer any more: end what still runs."""
        if not self.ended:
            self.gone = True
            self._cancel_all()
            self.wake()

    def _cancel_all(self) -> None:
        streams, self._streams = self._streams, [None] * len(self.jobs)
        for stream in streams:
            if stream is not None:
                stream.cancel()

    def _mark(self, events: Sequence[RequestEvent]) -> None:
        times, now = self.times, self._clock()
        for event in events:
            if isinstance(event, Tokens):
                if not times.first:
                    times.first = now
                else:
                    times.second = times.second or now
                    times.stall = max(times.stall, now - times.last)
                times.last = now


def _choice(index: int, job: Job, vocabulary: Vocabulary) -> Choice:
    marks = (vocabulary.added_id(mark) for mark in job.reading.marks)
    detokenizer = Detokenizer(
        vocabulary, skip_special=job.skip_special, shown=[mark for mark in marks if mark is not None]
    )
    return Choice(index, job.rules, detokenizer, job.reading.reader())
