"""Minutes of transfers over a line that is cut again and again: what both processes hold afterwards.

One round follows the other through a block pool at each end, and every byte is looked at (`rounds`). Both
processes count their tasks and sockets before and after, and end with an error where any is left, or a block
is still pinned or promised; their resident memory is looked at from outside.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from benchmarks.report import Result
from benchmarks.transport.course import course
from benchmarks.transport.line_cases import Say, Wan
from benchmarks.transport.loopback import Run, Setting, endpoint_of, measure
from benchmarks.transport.rounds import RoundsReceiver, RoundsSender
from shared.wire.handshake import Identity
from shared.wire.messages import Role

_MOST_GROWTH = 64 << 20
_SETTLED = 15.0
"""Seconds after which memory counts: buffers and pools are as large as they get."""


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


async def _receive(seconds: float, setting: Setting, pipe: Pipe) -> Any:
    before = held()
    core = RoundsReceiver()
    endpoint = endpoint_of(Identity("md", Role.MAIN, "b", 2), core, setting)
    pipe.send(await endpoint.listen(setting.receiver.address, 0))
    began = time.monotonic()
    progress = [(began, 0)]
    while not core.over:
        await asyncio.sleep(0.25)
        core.last = time.monotonic() >= began + seconds
        progress.append((time.monotonic(), core.got))
    await endpoint.close()
    await check_left(before, core.left())
    return progress, core.rounds


async def _send(setting: Setting, pipe: Pipe) -> Any:
    loop = asyncio.get_running_loop()
    port = pipe.recv()
    await loop.run_in_executor(None, time.monotonic)  # the executor's own are there
    before = held()
    core = RoundsSender()
    endpoint = endpoint_of(Identity("p", Role.PREFILL, "a", 1), core, setting)
    endpoint.dial("md", setting.receiver.address, port, setting.connections)
    await loop.run_in_executor(None, pipe.recv)
    core.stop()
    await endpoint.close()
    await check_left(before, core.left())
    return {}, [], dict(endpoint.counters)


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
    async with course(line.impairment, say) as where:
        assert where.line is not None
        setting = Setting(0, 2, line=line.spec, sender=where.near, receiver=where.far)
        most = seconds + 120
        running = asyncio.create_task(
            asyncio.to_thread(measure, partial(_receive, seconds), _send, setting, most, where.through)
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
    growth = max(settled) - settled[0] if settled else 0
    got = run.progress[-1][1]
    say(f"soak: {took:.0f} s, {cuts} cuts, {got >> 20} MiB, resident memory + {growth / 1e6:.1f} MB")
    facts = {
        "engine": where.engine,
        "seconds": round(took),
        "cuts": cuts,
        "megabytes": got >> 20,
        "reconnects": run.facts.get("bulk_reconnects", 0),
        "left": "no task, socket, chunk or block",
    }
    ratio = growth / _MOST_GROWTH
    case = "soak: resident memory grown"
    return [Result(case, growth / 1e6, "MB", _MOST_GROWTH / 1e6, (ratio,) * 3, 1.0, True, facts)]
