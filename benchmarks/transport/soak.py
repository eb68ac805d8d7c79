"""Minutes of transfers over a line that is cut again and again: what both processes hold afterwards.

One round follows the other through the same memory: the receiver empties it, asks for all of it again and
looks at every byte. Both processes count their tasks and sockets before and after, and end with an error
where any is left; their resident memory is looked at from outside.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from benchmarks.report import Result
from benchmarks.transport.course import course
from benchmarks.transport.line_cases import Say, Wan
from benchmarks.transport.loopback import Run, Setting, endpoint_of, measure
from shared.wire.handshake import Identity
from shared.wire.messages import KvChunk, Role
from tests.support.recording_core import RecordingCore
from tests.support.resuming_core import ReceivingCore, SendingCore

_CHUNK = 256 << 10
ROUND = 32 << 20
"""Bytes that are sent again and again."""
_MOST_GROWTH = 64 << 20
_SETTLED = 15.0
"""Seconds after which memory counts: buffers and pools are as large as they get."""


class RoundsReceiver(ReceivingCore):
    """Takes `rounds` times the same bytes, each time into empty memory."""

    def __init__(self, rounds: int, expected: bytes) -> None:
        super().__init__(len(expected), _CHUNK)
        self.rounds = rounds
        self.wrong = 0
        self._expected = expected

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        super().on_chunk(now, node, chunk, data, in_place)
        if self.missing or not self.rounds:
            return
        self.rounds -= 1
        self.wrong += self.memory != self._expected
        if self.rounds:
            self.memory[:] = bytes(len(self.memory))
            self.missing.update(range(len(self.memory) // _CHUNK))
            self.ask(node)


def held() -> tuple[int, int]:
    """(tasks, sockets) of this process."""
    gc.collect()
    return len(asyncio.all_tasks()), sum(_is_socket(each) for each in Path("/proc/self/fd").iterdir())


def _is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except OSError:
        return False  # the one that listed the directory


async def check_left(before: tuple[int, int], what: dict[str, int]) -> None:
    """Raises SystemExit where more tasks or sockets are there than before, or anything of `what` is not 0."""
    for _ in range(50):
        after = held()
        if after <= before:
            break
        await asyncio.sleep(0.1)
    tasks, sockets = (now - then for now, then in zip(after, before, strict=True))
    found = {"tasks": tasks, "sockets": sockets, **what}
    if any(count > 0 for count in found.values()):
        raise SystemExit(f"left behind: {found}")


async def _receive(setting: Setting, pipe: Pipe) -> Any:
    before = held()
    core = RoundsReceiver(setting.total // ROUND, _pattern())
    endpoint = endpoint_of(Identity("md", Role.MAIN, "b", 2), core, setting)
    pipe.send(await endpoint.listen(setting.receiver.address, 0))
    whole, progress = core.rounds, [(time.monotonic(), 0)]
    while core.rounds:
        await asyncio.sleep(0.25)
        _forget(core)
        progress.append((time.monotonic(), (whole - core.rounds + 1) * ROUND - len(core.missing) * _CHUNK))
    await endpoint.close()
    await check_left(before, {"wrong rounds": core.wrong, "chunks half landed": len(core.landing)})
    return progress[-2000:], {}


async def _send(setting: Setting, pipe: Pipe) -> Any:
    loop = asyncio.get_running_loop()
    port = pipe.recv()
    await loop.run_in_executor(None, time.monotonic)  # the executor's own are there
    before = held()
    core = SendingCore(_pattern(), _CHUNK)
    endpoint = endpoint_of(Identity("p", Role.PREFILL, "a", 1), core, setting)
    endpoint.dial("md", setting.receiver.address, port, setting.connections)
    over = loop.run_in_executor(None, pipe.recv)
    while not over.done():
        await asyncio.wait([over], timeout=0.25)
        _forget(core)
    await endpoint.close()
    await check_left(before, {"chunks not settled": len(core.out)})
    return {}, [], dict(endpoint.counters)


def _forget(core: RecordingCore) -> None:
    """A recording core keeps all that it is told: not here."""
    for record in (core.events, core.sessions, core.resumed, core.suspects, core.lost, core.messages):
        record.clear()
    for more in (core.chunks, core.broken, core.written):
        more.clear()


def _pattern() -> bytes:
    return random.Random(7).randbytes(ROUND)


def resident() -> int:
    """Bytes of resident memory of all processes that this one has started."""
    found = 0
    for child in multiprocessing.active_children():
        try:
            pages = Path(f"/proc/{child.pid}/statm").read_text().split()[1]
        except OSError:
            continue  # it has just ended
        found += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return found


async def soak(seconds: float, say: Say, rss: Callable[[], int] = resident) -> list[Result]:
    """About so long; cuts of 0.1 to 4 s, half of them silent, every few seconds."""
    draw = random.Random(5)
    line = Wan(200, 40, 0, 2)
    total = max(2, int(0.25 * seconds * line.rate / ROUND)) * ROUND
    async with course(line.impairment, say) as where:
        assert where.line is not None
        setting = Setting(total, 2, line=line.spec, sender=where.near, receiver=where.far)
        most = 4 * seconds + 60
        running = asyncio.create_task(
            asyncio.to_thread(measure, _receive, _send, setting, most, where.through)
        )
        began, cuts, memory = time.monotonic(), 0, [(0.0, rss())]
        while not running.done():
            await asyncio.wait([running], timeout=draw.uniform(2.0, 6.0))
            if running.done():
                break
            memory.append((time.monotonic() - began, rss()))
            where.line.cut(silent=bool(cuts % 2))
            await asyncio.sleep(draw.uniform(0.1, 4.0))
            where.line.heal()
            cuts += 1
        run: Run = await running
    took = time.monotonic() - began
    settled = [size for when, size in memory if when >= min(_SETTLED, took / 3)]
    growth = max(0, settled[-1] - settled[0]) if settled else 0
    say(f"soak: {took:.0f} s, {cuts} cuts, {total >> 20} MB, resident memory + {growth / 1e6:.1f} MB")
    facts = {
        "engine": where.engine,
        "seconds": round(took),
        "cuts": cuts,
        "megabytes": total >> 20,
        "reconnects": run.facts.get("bulk_reconnects", 0),
        "left": "no task, socket or chunk",
    }
    ratio = growth / _MOST_GROWTH
    case = "soak: resident memory grown"
    return [Result(case, growth / 1e6, "MB", _MOST_GROWTH / 1e6, (ratio,) * 3, 1.0, True, facts)]
