"""Clients of the mesh under chaos: sessions of several turns, streams and whole answers, some of which leave
early or read slowly. Each answer is judged token for token."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from shared.policy.config import RouterPolicy
from tests.chaos.asking import Ask, Knows, Manner, short
from tests.chaos.judging import Tally, Trouble, difference
from tests.support.small_tokenizer import EOS

WHOLE = 3.0
"""Times the patience with a stream that a client has with an answer that comes at once."""
AFTER = 10.0
"""Seconds after a fault in which a refusal may still be its consequence."""
ROUTER_AFTER = 2.0
"""The same for a connection to a router that died."""
_WAITS, _QUEUED = RouterPolicy().replace_wait, RouterPolicy().queue_wait
"""Seconds for which an answer, and a request that has none yet, waits for a worker of a role."""
_SMALL = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]  # so that a slow reader is felt by the router
_FIRST, _LAST = 3, 250  # ids that prompts are made of
_LEAVE_WITHIN = 5.0  # seconds after which one that waits for a moment to leave goes anyway


@dataclass
class Progress:
    """When each client last saw something: what recovery and hangs are measured by. `slow` reads slowly, and
    `blind` sees an answer when it is whole."""

    last: float
    slow: bool = False
    blind: bool = False

    @property
    def watched(self) -> bool:
        """Whether every token is seen when it comes."""
        return not self.slow and not self.blind


class Client:
    """One client: asks, is told, asks again, until `run` is cancelled."""

    def __init__(
        self,
        name: str,
        url: str,
        knows: Knows,
        manner: Manner,
        seed: int,
        tally: Tally,
        trouble: Trouble,
        stems: list[list[int]],
        patience: float,
    ) -> None:
        """`patience`: seconds without a token and without an error, nothing being broken, that are a hang."""
        self.name = name
        self._knows = knows
        self._manner = manner
        self._draw = random.Random(seed)
        self._tally = tally
        self._trouble = trouble
        self._stems = stems
        self._patience = patience
        transport = httpx.AsyncHTTPTransport(socket_options=_SMALL)
        self._http = httpx.AsyncClient(base_url=url, timeout=None, trust_env=False, transport=transport)
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self.progress = Progress(self._clock())
        self.seen = 0.0
        self.ask: Ask | None = None
        self._leaves_at = ""
        self._leaving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.disconnects = 0
        self.slow_reads = 0
        self.stopping = False
        self.spared = False  # nothing is done to its router

    async def run(self) -> None:
        """Sessions, one after the other."""
        try:
            while not self.stopping:
                await self._session()
        finally:
            await self._http.aclose()

    async def _session(self) -> None:
        draw, manner = self._draw, self._manner
        ids = list(draw.choice(self._stems)[: draw.randrange(8, manner.stem)])
        for _turn in range(draw.randrange(1, 5)):
            ids += [draw.randrange(_FIRST, _LAST) for _ in range(draw.choice(manner.more))]
            if len(ids) > manner.context or self.stopping:
                return
            ask = Ask(
                prompt=ids,
                max_tokens=draw.choice(manner.tokens),
                seed=draw.getrandbits(40),
                temperature=draw.choice((0.0, 0.0, 1.0)),
                ignore_eos=draw.random() < 0.7,
                began=self._clock(),
                deadline=manner.deadline,
            )
            await self._ask(ask)
            if not ask.done:
                await asyncio.sleep(draw.uniform(0.1, 0.4))
                return
            ids = ids + ask.told
            await asyncio.sleep(draw.uniform(0.0, 0.2))

    def told_of(self) -> str:
        """What it is waiting for."""
        return f"{self.name}: {short(self.ask) if self.ask is not None else 'between requests'}"

    # --- one request ----------------------------------------------------------------------------------------

    async def _ask(self, ask: Ask) -> None:
        """Ask, in one of the ways of clients, and judge."""
        draw = self._draw
        self._tally.requests += 1
        way = draw.random()
        self._leaves_at = draw.choice(_LEAVES) if way < 0.15 else ""
        slow = 0.15 <= way < 0.2
        whole = 0.2 <= way < 0.3
        self.slow_reads += slow
        if whole:
            ask.max_tokens = min(ask.max_tokens, 60)
        self.progress = Progress(self._clock(), slow=slow, blind=whole)
        self.ask = ask
        asking = asyncio.ensure_future(self._whole(ask) if whole else self._stream(ask, slow=slow))
        try:
            await self._watch(ask, asking)
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
                await asking
        self.ask = None
        self._judge(ask)

    async def _watch(self, ask: Ask, asking: asyncio.Future[None]) -> None:
        """Until the answer ends, the client leaves, or nothing comes for too long."""
        self._leaving = asyncio.get_running_loop().create_future()
        until = self._leaves_by()
        while not asking.done():
            now = self._clock()
            if self._leaving.done() or now >= until:
                self.disconnects += 1
                self._tally.left[ask.state] += 1
                ask.error = "left"
                return
            patience = self._patience * (WHOLE if self.progress.blind else 1.0)
            if not self.progress.slow and self._trouble.calm(self.progress.last, now) > patience:
                self._tally.hangs += 1
                self._tally.notes.append(f"hang of {self.name}: {short(ask)}")
                ask.error = "hang"
                return
            both: tuple[asyncio.Future[None], ...] = (asking, self._leaving)
            await asyncio.wait(both, timeout=min(1.0, until - now), return_when=asyncio.FIRST_COMPLETED)
        try:
            asking.result()
        except httpx.HTTPError as error:
            ask.error = ask.error or type(error).__name__

    def _leaves_by(self) -> float:
        """When a client that leaves does so at the latest."""
        if not self._leaves_at:
            return float("inf")
        longest = {"at once": 0.03, "some time": 1.5}.get(self._leaves_at)
        return self._clock() + (_LEAVE_WITHIN if longest is None else self._draw.uniform(0.0, longest))

    def _came_to(self, state: str) -> None:
        """The answer is at a state in which the client may want to leave."""
        if state == self._leaves_at and not self._leaving.done():
            self._leaving.set_result(None)

    async def _whole(self, ask: Ask) -> None:
        response = await self._http.post("/v1/completions", json=ask.body(stream=False), headers=_TRACE)
        ask.accepted = response.status_code == 200
        self._take(ask, response.content, response)
        if not ask.accepted:
            ask.error = _refused(response, ask)
        ask.done = ask.accepted and not ask.error
        self._saw()

    async def _stream(self, ask: Ask, *, slow: bool) -> None:
        asked = self._http.stream("POST", "/v1/completions", json=ask.body(stream=True), headers=_TRACE)
        async with asked as response:
            if response.status_code != 200:
                self._take(ask, await response.aread(), response)
                ask.error = _refused(response, ask)
                return
            ask.accepted = True
            self._came_to(ask.state)
            async for line in lines(response):
                if line == b"data: [DONE]":
                    ask.done = not ask.error
                elif line.startswith(b"data: ") and self._take(ask, line[6:], response):
                    self._saw()
                    self._came_to(ask.state)
                if slow and not self.stopping and self._draw.random() < 0.1:
                    await asyncio.sleep(self._draw.uniform(0.1, 1.0))

    def _take(self, ask: Ask, body: bytes, response: httpx.Response) -> int:
        """A chunk or a whole body; one that is no JSON is an error that nothing allows."""
        try:
            return ask.take(msgspec.json.decode(body))
        except msgspec.DecodeError:
            ask.error = "no_json"
            self._tally.notes.append(
                f"{self.name} got {response.status_code} with {body[:200]!r}: {short(ask)}"
            )
            return 0

    def _saw(self) -> None:
        self.progress.last = self.seen = self._clock()

    # --- judging --------------------------------------------------------------------------------------------

    def _judge(self, ask: Ask) -> None:
        tally = self._tally
        if not ask.done and not ask.error:
            ask.error = "no_end"
        expected = self._knows.expected(ask)
        if expected is not None:
            self._compare(ask, expected)
        self._knows.ended(ask)
        if ask.done:
            tally.finished += 1
            tally.pipelines[ask.pipeline] += 1
        elif ask.error not in ("left", "hang"):
            self._judge_error(ask)
        elif ask.error == "hang":
            tally.lost += 1

    def _compare(self, ask: Ask, expected: Sequence[int]) -> None:
        tally = self._tally
        found = difference(ask.told, expected, ended=ask.done)
        if found:
            tally.differs(found, f"{self.name}: {short(ask)} wanted {expected[found.at : found.at + 6]}")
        reason = "stop" if expected[-1] == EOS and not ask.ignore_eos else "length"
        if ask.done and ask.finish != reason:
            tally.wrong += 1
            tally.notes.append(f"{self.name} ended by {ask.finish}, not {reason}: {short(ask)}")

    def _judge_error(self, ask: Ask) -> None:
        """Refusals with Retry-After during trouble, and all that a router's death ends, are allowed; and that
        an answer is given up while no worker of a role has been there for `replace_wait`, a request without
        any token for `queue_wait`."""
        tally, now = self._tally, self._clock()
        tally.errors[ask.error] += 1
        refused = not ask.accepted and ask.error.endswith("+retry")
        broken_off = not ask.error[0].isdigit() and ask.error.endswith(("Error", "Timeout"))
        if broken_off and not self.spared and self._trouble.ends_rightly(ask.began, now, after=ROUTER_AFTER):
            tally.excused += 1
            return
        given_up = ask.accepted and ask.error == "unavailable"
        waits = _WAITS if ask.told else _QUEUED
        if given_up and self._trouble.gives_up_rightly(now, waits, after=ROUTER_AFTER):
            tally.given_up += 1
            return
        if refused and self._trouble.during(ask.began, now, after=AFTER):
            return
        tally.lost += not refused
        tally.not_allowed[ask.error] += 1
        tally.notes.append(f"{self.name} was told {ask.error} at {now:.2f}: {short(ask)}")


async def lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a stream. httpx's own splits at characters that end no line of an event stream."""
    rest = b""
    async for data in response.aiter_bytes():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line


_TRACE = {"X-PDD-Trace": "1"}
_LEAVES = ("at once", "prefill", "relay", "main_decode", "some time")
"""When clients leave: states of `Ask.state`, and times."""


def _refused(response: httpx.Response, ask: Ask) -> str:
    retry = "+retry" if "retry-after" in response.headers else ""
    return f"{response.status_code}:{ask.error}{retry}"
