"""Cases about what a line does over time: many transfers, a rate that changes, cuts."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from bisect import bisect_right
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any

from benchmarks.report import Result, quartiles
from benchmarks.transport.course import Course, course
from benchmarks.transport.line_cases import Say, Wan, over
from benchmarks.transport.loopback import Run, Setting, endpoint_of, measure, ours
from shared.wire.handshake import Identity
from shared.wire.messages import Role
from shared.wire.port import OutChunk
from tests.support.resuming_core import ReceivingCore, SendingCore

_CHUNK = 256 << 10


def many(count: int, at_once: int, runs: int, say: Say) -> list[Result]:
    """Many transfers of 64 KB to 4 MB: bytes per second of the second half beside the first."""
    draw = random.Random(1)
    sizes = tuple(draw.randrange(64 << 10, 4 << 20) for _ in range(count))
    block = 1 << 20
    total = sum(-(-size // block) * block for size in sizes)
    ratios, rates = [], []
    for at in range(runs):
        run = ours(Setting(total, sizes=sizes, at_once=at_once))
        middle = next(when for when, got in run.progress if got >= total // 2)
        first = run.progress[0][0]
        ratios.append((middle - first) / (run.progress[-1][0] - middle))
        rates.append(run.rate() * 8e-9)
        say(f"many {at + 1}/{runs}: {rates[-1]:.2f} Gbit/s, second half at {ratios[-1]:.2f} of the first")
    facts: dict[str, Any] = {"transfers": count, "at_once": at_once}
    value = statistics.median(rates)
    return [Result("many: second half / first", value, "Gbit/s", None, quartiles(ratios), 0.9, more=facts)]


DUTY = {"1 s of every 10": (1.0, 10.0), "80 ms of every 0.8 s": (0.08, 0.8)}
"""How a sender sends a tenth of the time: seconds of the line, seconds from one start to the next."""


async def estimate(seconds: float, say: Say) -> list[Result]:
    """A sender that sends a tenth of the time, in long and in short bursts, then one that always does while
    the rate changes. The cap is five times the rate, so that only what is measured counts."""
    line = Wan(200, 40, 0, 2, cap_mbit=1000)
    found = []
    async with course(line.impairment, say) as where:
        for name, (busy, gap) in DUTY.items():
            found.append(await _at_duty(line, where, name, int(busy * line.rate), gap, seconds))
            say(f"estimate at {name}: {found[-1].value:.0f} of {line.mbit:g} Mbit/s")
        return found + await _followed(line, where, say)


async def _at_duty(line: Wan, where: Course, name: str, size: int, gap: float, seconds: float) -> Result:
    """Every estimate counts from the fifth burst, or the middle of the run, on."""
    block = 1 << 20
    size = max(block, -(-size // block) * block)
    count = max(2, round(seconds / gap))
    run = await asyncio.to_thread(
        over, line, where, total=size * count, sizes=(size,) * count, gap=gap, most=seconds + 60
    )
    began, ended = run.estimates[0][0], run.estimates[-1][0]
    counts = min(began + 5 * gap, (began + ended) / 2)
    last = [rate for when, rate in run.estimates if when >= counts]
    off = [abs(rate / line.rate - 1) for rate in last]
    facts = {"engine": where.engine, "seconds": round(ended - began), "bursts": count}
    value = statistics.median(last) * 8e-6
    case = f"estimate at 10% duty, {name}: distance"
    return Result(case, value, "Mbit/s", line.mbit, quartiles(off), 0.15, True, facts)


async def _followed(line: Wan, where: Course, say: Say) -> list[Result]:
    """200 -> 50 -> 200 Mbit/s."""
    total = int(line.rate * 6 + line.rate / 4 * 8 + line.rate * 8) >> 20 << 20
    running = asyncio.create_task(asyncio.to_thread(over, line, where, total=total))
    moments: list[tuple[float, float]] = []
    assert where.line is not None
    await asyncio.sleep(7)
    for mbit, seconds in ((50.0, 8.0), (200.0, 0.0)):
        where.line.set_rate(mbit)
        moments.append((time.monotonic(), mbit * 1e6 / 8))
        await asyncio.sleep(seconds)
    run: Run = await running
    found = []
    for (began, rate), until in zip(moments, (moments[1][0], run.progress[-1][0]), strict=True):
        within = [when for when, one in run.estimates if began < when < until and abs(one / rate - 1) <= 0.15]
        took = min(within, default=until + 60) - began
        say(f"estimate follows to {rate * 8e-6:g} Mbit/s in {took:.1f} s")
        case = f"estimate follows to {rate * 8e-6:g} Mbit/s"
        found.append(Result(case, took, "s", 3.0, (took / 3, took / 3, took / 3), 1.0, True))
    return found


async def _receive(setting: Setting, pipe: Pipe) -> Any:
    core = ReceivingCore(setting.total, _CHUNK)
    endpoint = endpoint_of(Identity("md", Role.MAIN, "b", 2), core, setting)
    pipe.send(await endpoint.listen(setting.receiver.address, 0))
    progress: list[tuple[float, int]] = []
    while not progress or core.missing:
        progress.append((time.monotonic(), setting.total - len(core.missing) * _CHUNK))
        await asyncio.sleep(0.05)
    progress.append((time.monotonic(), setting.total))
    await endpoint.close()
    if core.memory != _pattern(setting.total):
        raise SystemExit("what arrived is not what was sent")
    return progress, {}


class _Counting(SendingCore):
    """Notes what it sends again, and when."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, _CHUNK)
        self.again: list[tuple[float, float]] = []  # (monotonic seconds, bytes)
        self._known: set[int] = set()

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        chunk = super().next_chunk(now, node, limit)
        if chunk is not None:
            if chunk.header.block in self._known:
                self.again.append((now, len(chunk.data)))
            self._known.add(chunk.header.block)
        return chunk


def by_cut(began: Sequence[float], again: Sequence[tuple[float, float]]) -> list[float]:
    """Bytes sent again after each cut, until the next one. `began`: when each cut did, in order."""
    found = [0.0] * len(began)
    for when, size in again:
        found[max(0, bisect_right(began, when) - 1)] += size
    return found


async def _send(setting: Setting, pipe: Pipe) -> Any:
    core = _Counting(_pattern(setting.total))
    endpoint = endpoint_of(Identity("p", Role.PREFILL, "a", 1), core, setting)
    endpoint.dial("md", setting.receiver.address, pipe.recv(), setting.connections)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await endpoint.close()
    return {}, core.again, dict(endpoint.counters)


def _pattern(size: int) -> bytes:
    return random.Random(7).randbytes(1 << 20) * (size >> 20)


async def cuts(count: int, longest: float, say: Say) -> list[Result]:
    """Random cuts, half of them silent, while one transfer runs; all bytes arrive, and few are sent again."""
    draw = random.Random(3)
    line = Wan(200, 40, 0, 1)
    async with course(line.impairment, say) as where:
        assert where.line is not None
        seconds = 2.0 * count + 4
        total = int(line.rate * seconds) >> 20 << 20
        setting = Setting(total, 1, line=line.spec, sender=where.near, receiver=where.far)
        running = asyncio.create_task(
            asyncio.to_thread(measure, _receive, _send, setting, 60 + count * (longest + 6), where.through)
        )
        await asyncio.sleep(3)
        began = []
        for at in range(count):
            began.append(time.monotonic())
            where.line.cut(silent=bool(at % 2))
            await asyncio.sleep(draw.uniform(0.1, longest))
            where.line.heal()
            await asyncio.sleep(2.0)
        run: Run = await running
    resent = by_cut(began, run.estimates)
    bound = line.rate * line.rtt_ms / 1e3 * 2 + 2 * _CHUNK  # the line and its buffer, what is unsent, a chunk
    middle, most = statistics.median(resent), max(resent)
    shown = f"{middle / 1e6:.2f} MB sent again for each, {most / 1e6:.2f} for one"
    say(f"cuts: {count}, {shown}, of {bound / 1e6:.2f} allowed")
    facts = {"cuts": count, "engine": where.engine, "megabytes": total >> 20}
    facts |= {"each": [round(size / 1e6, 2) for size in resent], "median": round(middle / 1e6, 2)}
    ratio = most / bound  # each cut has to keep to it
    return [
        Result("cuts: most resent for one", most / 1e6, "MB", bound / 1e6, (ratio,) * 3, 1.0, True, facts)
    ]
