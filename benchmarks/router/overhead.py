"""Case `overhead`: what the router adds to a request's time to first token, and how much it carries.

The workers answer at once, so the whole time to the first token, from the request's first byte sent to the
first token received, is the router's, the sockets' and this client's; for long prompts the workers' own
hashing is taken off. The same client sends the same bytes to a server without a router, in the same run:
added is one P99 less the other; both stand beside it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.report import Result, bounded, paired
from benchmarks.router.client import Client, Told, chat
from benchmarks.router.rig import Rig
from benchmarks.router.texts import Texts

SHORT_PROMPT, SHORT_ANSWER = 64, 8
LONG_PROMPT = 32_768
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    runs: int = 7
    seconds: float = 4.0
    """Of each part of a run."""
    conversations: int = 10
    """With long prompts, in each run."""
    rate: float = 100.0
    """Short requests/s, Poisson, where they are measured alone."""
    beside: float = 40.0
    """Short requests/s beside long ones."""
    clients: int = 64
    """That ask one short request after another for the router's most."""
    streams: int = 128


@dataclass
class Seen:
    """Milliseconds to the first token of each request, one list a run."""

    short: list[list[float]] = field(default_factory=list)
    bare: list[list[float]] = field(default_factory=list)
    first: list[list[float]] = field(default_factory=list)
    bare_long: list[list[float]] = field(default_factory=list)
    next: list[list[float]] = field(default_factory=list)
    beside: list[list[float]] = field(default_factory=list)
    stall: list[list[float]] = field(default_factory=list)
    """The longest gap between two ids of each short request, with others like it."""
    stall_beside: list[list[float]] = field(default_factory=list)
    """The same beside long prompts."""


async def latency(rig: Rig, texts: Texts, size: Size, say: Say) -> tuple[list[Result], Seen]:
    """Short prompts alone, then long conversations with short prompts beside them."""
    seen = Seen()
    rig.fleet.pace, rig.fleet.held = 0.005, 1 << 30
    await rig.client.warm(64)
    await rig.bare.warm(64)
    await _poisson(rig.client, texts, 50.0, 1.0, random.Random(1))
    for run in range(size.runs):
        draw = random.Random(run)
        texts.prepare(SHORT_PROMPT, int(size.rate * size.seconds * 2))
        texts.prepare(LONG_PROMPT, size.conversations)
        seen.bare.append(_ttft(await _poisson(rig.bare, texts, size.rate, size.seconds / 2, draw)))
        alone = await _poisson(rig.client, texts, size.rate, size.seconds, draw)
        seen.short.append(_ttft(alone))
        seen.stall.append(_stall(alone))
        beside = asyncio.ensure_future(_endless(rig.client, texts, size.beside, draw))
        first, after, plain = await _conversations(rig, texts, size.conversations)
        beside.cancel()
        others = await beside
        seen.beside.append(_ttft(others))
        seen.stall_beside.append(_stall(others))
        seen.first.append(first)
        seen.next.append(after)
        seen.bare_long.append(plain)
        names = ("bare", "short", "first", "next", "beside")
        parts = ", ".join(f"{name} {p99(getattr(seen, name)[-1]):.1f}" for name in names)
        say(f"overhead {run + 1}/{size.runs}: p99 ms: {parts}")
    return _judged(seen), seen


def _judged(seen: Seen) -> list[Result]:
    rows = [
        ("short prompts", seen.short, seen.bare, 10.0),
        ("32k tokens, first turn", seen.first, seen.bare_long, 100.0),
        ("32k tokens, next turn", seen.next, seen.bare_long, 15.0),
        ("short prompts beside 32k", seen.beside, seen.bare, 10.0),
    ]
    found = []
    for name, runs, plain, must in rows:
        every = sorted(one for run in runs for one in run)
        baselines = [p99(run) for run in plain]
        whole = [p99(run) for run in runs]
        values = [one - other for one, other in zip(whole, baselines, strict=True)]
        result = bounded(
            f"overhead added ttft p99, {name}",
            values,
            "ms",
            must,
            most=True,
            bare=round(statistics.median(baselines), 2),
            whole=round(statistics.median(whole), 2),
            p50=round(every[len(every) // 2], 2),
            worst=round(every[-1], 2),
            samples=len(every),
        )
        found.append(result)
    stalls = [p99(run) for run in seen.stall_beside]
    alone = [p99(run) for run in seen.stall]
    found.append(paired("overhead itl p99 of the longest gap, beside 32k / alone", stalls, alone, "ms", None))
    return found


def _ttft(asked: Sequence[Told]) -> list[float]:
    return [1e3 * told.ttft for told in asked]


def _stall(asked: Sequence[Told]) -> list[float]:
    return [1e3 * told.stall for told in asked]


async def capacity(rig: Rig, texts: Texts, size: Size, say: Say) -> list[Result]:
    """Short requests/s, and streamed tokens/s, with the router on its one core."""
    short: list[float] = []
    cpus: list[float] = []
    bare: list[float] = []
    rig.fleet.pace, rig.fleet.held = 0.005, 1 << 30
    await _loop(rig.client, texts, size.clients, 1.0)
    for run in range(size.runs):
        bare.append(await _loop(rig.bare, texts, size.clients, size.seconds / 4))
        cpu = rig.cpu()
        short.append(await _loop(rig.client, texts, size.clients, size.seconds))
        cpus.append((rig.cpu() - cpu) / size.seconds)
        say(f"throughput {run + 1}/{size.runs}: {short[-1]:.0f} requests/s, core {cpus[-1]:.0%}")
    first = bounded(
        "throughput short requests",
        short,
        "1/s",
        400.0,
        most=False,
        baselines=bare,
        core=round(sum(cpus) / len(cpus), 3),
        prompt=SHORT_PROMPT,
        answer=SHORT_ANSWER,
    )
    return [first, await _tokens(rig, texts, size, say)]


async def _tokens(rig: Rig, texts: Texts, size: Size, say: Say) -> Result:
    """Many streams at once: a new step whenever clients have seen most of what was drawn."""
    fleet = rig.fleet
    fleet.pace, fleet.held = 0.001, 2 * size.streams
    fleet.drawn = fleet.seen = 0
    request = chat([{"role": "user", "content": texts.prompt(SHORT_PROMPT)}], 60_000)
    await rig.client.warm(size.streams)
    streams = [asyncio.ensure_future(rig.client.ask(request)) for _ in range(size.streams)]
    await asyncio.sleep(1.0)
    rates: list[float] = []
    cpus: list[float] = []
    events = fleet.events
    drawn = fleet.drawn
    for run in range(size.runs):
        began, seen, cpu = time.perf_counter(), fleet.seen, rig.cpu()
        await asyncio.sleep(size.seconds)
        seconds = time.perf_counter() - began
        rates.append((fleet.seen - seen) / seconds)
        cpus.append((rig.cpu() - cpu) / seconds)
        say(f"tokens {run + 1}/{size.runs}: {rates[-1]:.0f} tokens/s, core {cpus[-1]:.0%}")
    together = round((fleet.drawn - drawn) / max(1, fleet.events - events), 2)
    rig.client.close()
    await asyncio.gather(*streams, return_exceptions=True)
    return bounded(
        "throughput streamed tokens",
        rates,
        "1/s",
        15_000.0,
        most=False,
        core=round(sum(cpus) / len(cpus), 3),
        streams=size.streams,
        tokens_per_event=together,
    )


async def _poisson(
    client: Client, texts: Texts, rate: float, seconds: float, draw: random.Random
) -> list[Told]:
    """Short requests that come at a rate, whatever became of those before."""
    loop = asyncio.get_running_loop()
    asked: list[asyncio.Future[Told]] = []
    end = loop.time() + seconds
    at = loop.time()
    while (at := at + draw.expovariate(rate)) < end:
        request = _short(texts)
        await asyncio.sleep(max(0.0, at - loop.time()))
        asked.append(asyncio.ensure_future(client.ask(request)))
    return list(await asyncio.gather(*asked))


async def _endless(client: Client, texts: Texts, rate: float, draw: random.Random) -> list[Told]:
    """The same until it is cancelled."""
    asked: list[asyncio.Future[Told]] = []
    try:
        while True:
            request = _short(texts)
            await asyncio.sleep(draw.expovariate(rate))
            asked.append(asyncio.ensure_future(client.ask(request)))
    except asyncio.CancelledError:
        pass
    return list(await asyncio.gather(*asked))


async def _conversations(rig: Rig, texts: Texts, count: int) -> tuple[list[float], list[float], list[float]]:
    """Two turns each: of the first, of the next, and of the first's bytes sent to the bare server."""
    first: list[float] = []
    after: list[float] = []
    bare: list[float] = []
    for _ in range(count):
        turns = [{"role": "user", "content": texts.prompt(LONG_PROMPT)}]
        request = chat(turns, SHORT_ANSWER)
        bare.append(1e3 * (await rig.bare.ask(request)).ttft)
        told, taken = await _long(rig, request)
        first.append(taken)
        turns += [{"role": "assistant", "content": told.text()}, {"role": "user", "content": "Go on."}]
        await asyncio.sleep(0.05)
        _, taken = await _long(rig, chat(turns, SHORT_ANSWER))
        after.append(taken)
        await asyncio.sleep(0.05)
    return first, after, bare


async def _long(rig: Rig, request: bytes) -> tuple[Told, float]:
    """One long request; its milliseconds to first token without the workers' own."""
    busy = rig.fleet.busy
    told = await rig.client.ask(request, keep=True)
    return told, 1e3 * (told.ttft - (rig.fleet.busy - busy))


async def _loop(client: Client, texts: Texts, clients: int, seconds: float) -> float:
    """Short requests/s of so many clients that ask one after another."""
    requests = [_short(texts) for _ in range(512)]
    counted = 0
    end = time.perf_counter() + seconds

    async def one(at: int) -> None:
        nonlocal counted
        while time.perf_counter() < end:
            await client.ask(requests[at % len(requests)])
            counted += time.perf_counter() < end
            at += clients

    await asyncio.gather(*(one(at) for at in range(clients)))
    return counted / seconds


def _short(texts: Texts) -> bytes:
    return chat([{"role": "user", "content": texts.prompt(SHORT_PROMPT)}], SHORT_ANSWER)


def p99(values: Sequence[float]) -> float:
    """Of few values the largest."""
    return sorted(values)[int(0.99 * len(values))]
