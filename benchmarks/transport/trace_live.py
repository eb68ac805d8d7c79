"""The agentic trace over real sockets, beside the same arrivals in virtual time: do sockets follow the
decisions?

A window of the trace is scaled to an emulated line. One sender opens its transfers when they come, in real
seconds, and sends with the real queue through the real endpoint; `SharedLine` serves the same arrivals in
virtual time, at the rate that the endpoint is capped to. Half a round trip is added to what it says.
"""

# ruff: noqa: ARG002 (the face of a core fixes the arguments)
from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import xxhash

from benchmarks.report import Result, quartiles
from benchmarks.transport.agentic import DEFAULT, Arrival, arrivals, sessions
from benchmarks.transport.cores import Quiet
from benchmarks.transport.course import course
from benchmarks.transport.disciplines import first_come
from benchmarks.transport.line_cases import Say, Wan
from benchmarks.transport.loopback import Setting, endpoint_of, measure
from benchmarks.transport.shared_line import SharedLine
from shared.policy.config import LinePolicy
from shared.policy.priority import UNCOVERED, SendQueue
from shared.wire.handshake import Identity
from shared.wire.messages import KvChunk, Role
from shared.wire.port import OutChunk, PeerInfo, WakeBulk

CLOSE = 1.25
"""Times in virtual time that the mean and the median over sockets may be."""

ALIKE = 0.9
"""Part of the pairs of transfers open at the same time that have to end in the same order."""

BOUNDS = (256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Bytes between two classes of sizes."""


LINE = Wan(200, 40, 0, 2, cap_mbit=190)
"""Capped a little below its rate, as advised."""


@dataclass(frozen=True, slots=True)
class Live:
    """A line, and which part of the trace is sent over it."""

    trace: Path = DEFAULT
    seconds: float = 60.0
    seeds: tuple[int, ...] = (1,)
    load: float = 0.9
    token_bytes: int = 1024  # so that a window has some hundreds of transfers
    line: Wan = LINE

    @property
    def rate(self) -> float:
        return (self.line.cap_mbit or self.line.mbit) * 1e6 / 8


class LiveSender(Quiet):
    """Opens each transfer when it is due, counted from the session's start."""

    def __init__(self, starts: Sequence[float], sizes: Sequence[int]) -> None:
        super().__init__(1)
        self.opened: dict[int, tuple[float, int]] = {}  # by number: when in monotonic seconds, and class
        self._plan = list(zip(starts, sizes, strict=True))
        self._queue = SendQueue(LinePolicy())
        self._left: dict[bytes, int] = {}
        self._began: float | None = None
        self._node = ""

    def on_session(self, now: float, peer: PeerInfo) -> None:
        self._began, self._node = now, peer.node

    def next_deadline(self) -> float | None:
        if self._began is None or len(self.opened) == len(self._plan):
            return None
        return self._began + self._plan[len(self.opened)][0]

    def on_timer(self, now: float) -> None:
        while (due := self.next_deadline()) is not None and due <= now:
            number = len(self.opened)
            ticket, size = number.to_bytes(4, "big"), self._plan[number][1]
            self.opened[number] = (time.monotonic(), UNCOVERED)
            self._left[ticket] = size
            self._queue.open(ticket, UNCOVERED, size, now)
            self._queue.set_ready(ticket, True)
        self.outbox.append(WakeBulk(self._node))

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        ticket = self._queue.next()
        if ticket is None:
            return None
        left = self._left[ticket]
        size = min(limit, left, self.block_bytes)
        data = self.memory[:size]
        header = KvChunk(ticket, 0, 0, 0, 0, size, 0, xxhash.xxh3_64_intdigest(data))
        self._queue.sent(ticket, size)
        self._left[ticket] = left - size
        if left > size:
            self._queue.acked(ticket, self._plan[int.from_bytes(ticket, "big")][1] - left + size)
        else:
            del self._left[ticket]
            self._queue.close(ticket)
        return OutChunk(header, data, 0)


class LiveReceiver(Quiet):
    """Counts what comes of each transfer; says when each was whole."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(1)
        self.ended: dict[int, float] = {}  # by number, in monotonic seconds
        self.over = asyncio.Event()
        self.got = 0
        self.wrong = 0
        self._left = dict(enumerate(sizes))

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        self.wrong += xxhash.xxh3_64_intdigest(data) != chunk.checksum
        self.got += chunk.length
        number = int.from_bytes(chunk.ticket, "big")
        self._left[number] -= chunk.length
        if not self._left[number]:
            del self._left[number]
            self.ended[number] = time.monotonic()
        if not self._left:
            self.over.set()


async def _receive(setting: Setting, pipe: Pipe) -> Any:
    core = LiveReceiver(setting.sizes)
    endpoint = endpoint_of(Identity("md", Role.MAIN, "b", 2), core, setting)
    began = time.monotonic()
    pipe.send(await endpoint.listen(setting.receiver.address, 0))
    await core.over.wait()
    await endpoint.close()
    if core.wrong:
        raise SystemExit(f"{core.wrong} chunks arrived wrong")
    return [(began, 0), (time.monotonic(), core.got)], core.ended


async def _send(setting: Setting, pipe: Pipe) -> Any:
    core = LiveSender(setting.urgent, setting.sizes)
    endpoint = endpoint_of(Identity("p", Role.PREFILL, "a", 1), core, setting)
    endpoint.dial("md", setting.receiver.address, pipe.recv(), setting.connections)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    counters = dict(endpoint.counters)
    await endpoint.close()
    return core.opened, [], counters


def window(coming: Sequence[Arrival], seconds: float, load: float, rate: float) -> list[Arrival]:
    """The first `seconds` in which about `load` of the line comes, no transfer being more than a third of it.
    Raises ValueError where there are none."""
    wanted = load * rate * seconds
    for step in range(int(coming[-1].at / seconds)):
        found = [each for each in coming if step * seconds <= each.at < (step + 1) * seconds]
        total = sum(each.size for each in found)
        if abs(total / wanted - 1) <= 0.1 and max(each.size for each in found) <= total / 3:
            return [Arrival(each.at - step * seconds, each.size, each.session) for each in found]
    raise ValueError(f"the trace has no {seconds:g} s that load the line to {load:g}; take a longer window")


@dataclass(frozen=True, slots=True)
class Pair:
    """One window: seconds of each transfer over sockets, in virtual time, and first come first served."""

    coming: tuple[Arrival, ...]
    live: tuple[float, ...]
    virtual: tuple[float, ...]
    first_come: tuple[float, ...]

    def alike(self) -> float:
        """Of the pairs of transfers that were open at the same time in virtual time: the part that ends in
        the same order over sockets."""
        ends = [each.at + took for each, took in zip(self.coming, self.virtual, strict=True)]
        others = [each.at + took for each, took in zip(self.coming, self.live, strict=True)]
        same = pairs = 0
        for at, each in enumerate(self.coming):
            for before in range(at):
                if ends[before] > each.at:
                    pairs += 1
                    same += (ends[before] < ends[at]) == (others[before] < others[at])
        return same / pairs if pairs else 1.0

    def by_size(self) -> dict[str, list[float]]:
        """P50 over sockets and in virtual time for each class of sizes, and how many it has."""
        found = {}
        for low, high in zip((0, *BOUNDS), (*BOUNDS, 1 << 62), strict=True):
            those = [at for at, each in enumerate(self.coming) if low <= each.size < high]
            if those:
                middles = [statistics.median(took[at] for at in those) for took in (self.live, self.virtual)]
                name = f"from {low >> 10} KiB"
                found[name] = [round(middles[0], 4), round(middles[1], 4), len(those)]
        return found


async def trace_live(live: Live, plots: Path, say: Say) -> list[Result]:
    """Every window. Raises FileNotFoundError where the trace is not there."""
    if not live.trace.is_file():
        raise FileNotFoundError(f"no trace at {live.trace}; name it with --trace")
    trace = sessions(live.trace)
    pairs = []
    async with course(live.line.impairment, say) as where:
        for seed in live.seeds:
            drawn = arrivals(trace, seed, load=live.load, rate=live.rate, token_bytes=live.token_bytes)
            coming = window(drawn, live.seconds, live.load, live.rate)
            setting = Setting(
                sum(each.size for each in coming),
                live.line.connections,
                line=live.line.spec,
                sender=where.near,
                receiver=where.far,
                urgent=tuple(each.at for each in coming),
                sizes=tuple(each.size for each in coming),
            )
            most = 2 * live.seconds + 60
            run = await asyncio.to_thread(measure, _receive, _send, setting, most, where.through)
            pairs.append(_pair(live, coming, run.took))
            say(f"trace-mix-live, seed {seed}: {len(coming)} transfers, {pairs[-1].alike():.3f} in order")
        engine = where.engine
    target = plots / "trace-mix-live.png"
    say(f"plot: {target}" if plot(pairs, target) else "no plot: matplotlib is not installed")
    return results(live, pairs, engine)


def _pair(live: Live, coming: Sequence[Arrival], took: Sequence[float]) -> Pair:
    """The same arrivals under the other disciplines, at the cap's rate."""
    way = live.line.rtt_ms / 2e3
    places = [0] * (1 + max(each.session for each in coming))
    virtual = SharedLine(live.rate, 1).serve(coming, places)
    fifo = first_come(coming, live.rate)
    return Pair(
        tuple(coming), tuple(took), tuple(each + way for each in virtual), tuple(each + way for each in fifo)
    )


def results(live: Live, pairs: Sequence[Pair], engine: str) -> list[Result]:
    """Met where sockets take about as long as virtual time says, and transfers end in its order."""
    facts: dict[str, Any] = {
        "engine": engine,
        "seconds": live.seconds,
        "transfers": [len(each.coming) for each in pairs],
        "first_come_mean": round(statistics.fmean(statistics.fmean(each.first_come) for each in pairs), 3),
    }
    found = []
    for name, of in (("mean", statistics.fmean), ("p50", statistics.median)):
        ours = [of(each.live) for each in pairs]
        theirs = [of(each.virtual) for each in pairs]
        ratio = quartiles([one / other for one, other in zip(ours, theirs, strict=True)])
        case = f"trace-mix-live {name} / in virtual time"
        middle = statistics.median(theirs)
        found.append(Result(case, statistics.median(ours), "s", middle, ratio, CLOSE, True, facts))
    alike = [each.alike() for each in pairs]
    more = {**facts, "p50_by_size": pairs[0].by_size()}
    case = "trace-mix-live: pairs that end in the same order"
    found.append(Result(case, statistics.median(alike), "part", 1.0, quartiles(alike), ALIKE, more=more))
    return found


def plot(pairs: Sequence[Pair], path: Path) -> bool:
    """Each transfer over sockets against virtual time, as a PNG; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    for pair in pairs:
        axes.scatter(pair.virtual, pair.live, s=6, label="our order, over sockets")
        axes.scatter(pair.virtual, pair.first_come, s=6, alpha=0.4, label="first come first served")
    most = max(max(pair.live) for pair in pairs)
    axes.plot([0.01, most], [0.01, most], color="grey", linewidth=0.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("seconds in virtual time, our order")
    axes.set_ylabel("seconds")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True
