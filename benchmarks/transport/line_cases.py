"""Cases that move bytes: loopback, a WAN beside iperf3, a lossy WAN, urgent transfers beside a long one."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.report import Result, paired, quartiles
from benchmarks.transport.course import Course, congestion_controls, course, packet
from benchmarks.transport.iperf import iperf
from benchmarks.transport.loopback import (
    Place,
    Run,
    Setting,
    bare,
    checked,
    checksum_rate,
    measure,
    ours,
    plain,
    receive_ours,
    send_ours,
)
from benchmarks.wan.impairment import Impairment
from shared.policy.compression import Mode
from shared.policy.config import LinkPolicy
from shared.transport.line import LineSpec
from shared.transport.security import TlsFiles

FULL = 0.99
"""Part of a line's payload from which on it is full."""

SKIP = 1.0
"""Seconds of start-up that do not count on a WAN."""

AS_WITHOUT = 0.97
"""Of the rate without TLS: what counts as the same."""

_HEADERS = 52
_PEM = ("mesh.pem", "mesh.key", "mesh-ca.pem")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wan:
    """A line, and how our endpoint is configured for it."""

    mbit: float
    rtt_ms: float
    megabytes: int
    connections: int
    loss: float = 0.0
    buffer_bdp: float = 1.0
    congestion: str = ""
    cap_mbit: float = 0.0  # as configured; 0: the line's rate
    compress: Mode = "off"

    @property
    def rate(self) -> float:
        return self.mbit * 1e6 / 8

    @property
    def payload(self) -> float:
        """Mbit/s without the headers of packets: IP, TCP and its time stamps."""
        most = packet(self.impairment)
        return self.mbit * (most - _HEADERS) / most

    @property
    def impairment(self) -> Impairment:
        return Impairment(self.mbit, self.rtt_ms / 2, buffer_ms=self.rtt_ms * self.buffer_bdp, loss=self.loss)

    @property
    def spec(self) -> LineSpec:
        return LineSpec(
            "wan",
            ("a", "b"),
            rate=(self.cap_mbit or self.mbit) * 1e6 / 8,
            rtt=self.rtt_ms / 1e3,
            bulk_connections=self.connections,
            congestion=self.congestion,
            compress=self.compress,
        )

    @property
    def name(self) -> str:
        loss = f" {self.loss:.1%} loss" if self.loss else ""
        return f"{self.mbit:g} Mbit/s {self.rtt_ms:g} ms{loss}"


def loopback(pairs: int, megabytes: int, say: Say) -> Iterator[Result]:
    """One connection, two processes; beside iperf3, where it is installed, and beside what bounds us, over
    the same memory: a bare uvloop pair and blocking sockets, and blocking sockets with checksums."""
    setting = Setting(megabytes << 20)
    one: list[Run] = []
    other: list[Run] = []
    least: list[Run] = []
    bound: list[Run] = []
    third: list[float] = []
    here = Course(line=None, near=Place(), far=Place(), through=lambda port: port)
    for pair in range(pairs):
        one.append(ours(setting))
        other.append(bare(setting))
        least.append(plain(setting))
        bound.append(checked(setting))
        run = iperf(here, 1, seconds=2.5, congestion=LinkPolicy().lan_congestion)
        if run is not None:
            third.append(run.rate(0.5))
        shown = [_gbit(run[-1].rate()) for run in (one, other, least, bound)]
        say(
            f"loopback {pair + 1}/{pairs}: {shown[0]}, bare {shown[1]}, plain {shown[2]},"
            f" with checksums {shown[3]} Gbit/s"
        )
    mine = [run.rate() * 8e-9 for run in one]
    theirs = [run.rate() * 8e-9 for run in other]
    cpu = [run.cpu / (setting.total / 1e9) for run in one]
    used = [run.cpu / (setting.total / 1e9) for run in other]
    kernel = [run.rate() * 8e-9 for run in least]
    ceiling = [run.rate() * 8e-9 for run in bound]
    yield paired("loopback / bare socket", mine, theirs, "Gbit/s", None)
    yield paired("loopback / plain sockets", mine, kernel, "Gbit/s", None)
    yield paired("loopback / plain sockets with checksums", mine, ceiling, "Gbit/s", None)
    if third:
        rates = [rate * 8e-9 for rate in third]
        facts = {"congestion": LinkPolicy().lan_congestion, "checksum_gb_s": round(checksum_rate() / 1e9, 1)}
        yield paired("loopback / iperf3", mine, rates, "Gbit/s", 0.85, stretch=0.95, **facts)
        yield paired("plain sockets / iperf3", kernel, rates, "Gbit/s", None)
        yield paired("plain sockets with checksums / iperf3", ceiling, rates, "Gbit/s", None)
    else:
        say("loopback: iperf3 is not installed; the bare socket alone is compared")
    yield paired("loopback CPU seconds per GB", cpu, used, "s/GB", None)


def certificates(files: Path) -> TlsFiles:
    """Those of a directory. Raises FileNotFoundError."""
    for name in _PEM:
        if not (files / name).is_file():
            raise FileNotFoundError(f"no {files / name}; name a directory with {', '.join(_PEM)} by --tls")
    return TlsFiles(*(str(files / name) for name in _PEM))


async def tls_wan(lines: Sequence[Wan], pairs: int, files: TlsFiles, say: Say) -> list[Result]:
    """Each line with mutual TLS 1.3, beside the same without."""
    found = []
    for each in lines:
        async with course(each.impairment, say) as where:
            one: list[Run] = []
            other: list[Run] = []
            for pair in range(pairs):
                one.append(await asyncio.to_thread(over, each, where, tls=files))
                other.append(await asyncio.to_thread(over, each, where))
                mine, theirs = (runs[-1].rate(SKIP) * 8e-6 for runs in (one, other))
                say(f"tls {each.name} {pair + 1}/{pairs}: {mine:.0f}, without {theirs:.0f} Mbit/s")
        secure, open_ = ([run.rate(SKIP) * 8e-6 for run in runs] for runs in (one, other))
        name = f"tls {each.name} / without"
        found.append(paired(name, secure, open_, "Mbit/s", AS_WITHOUT, connections=each.connections))
    return found


def tls(pairs: int, megabytes: int, files: TlsFiles, say: Say) -> Iterator[Result]:
    """Mutual TLS 1.3 on loopback, beside a bare socket with the same."""
    setting = Setting(megabytes << 20, tls=files)
    one, other = [], []
    for pair in range(pairs):
        one.append(ours(setting).rate() * 8e-9)
        other.append(bare(setting).rate() * 8e-9)
        say(f"tls {pair + 1}/{pairs}: {one[-1]:.2f} bare {other[-1]:.2f} Gbit/s")
    yield paired("tls loopback / bare ssl socket", one, other, "Gbit/s", None)


async def wan(lines: Sequence[Wan], pairs: int, least: float, plots: Path, say: Say) -> list[Result]:
    """Each line: part of its rate that arrives after the first second, and beside the best of iperf3."""
    found = []
    last: dict[str, Run] = {}
    for each in lines:
        async with course(each.impairment, say) as where:
            mine: list[float] = []
            theirs: list[float] = []
            for pair in range(pairs):
                last[each.name] = run = await asyncio.to_thread(over, each, where)
                mine.append(run.rate(SKIP))
                theirs += await asyncio.to_thread(_best_of_iperf, each, where)
                best = f"{theirs[-1] * 8e-6:.0f}" if theirs else "not installed"
                say(f"{each.name} {pair + 1}/{pairs}: {mine[-1] * 8e-6:.0f}, iperf3 {best} Mbit/s")
            facts = {"engine": where.engine, "connections": each.connections, "congestion": each.congestion}
            parts = [rate / each.rate for rate in mine]
            case = f"wan{'-loss' if each.loss else ''} {each.name}"
            middle = statistics.median(mine) * 8e-6
            found.append(
                Result(f"{case} / rate", middle, "Mbit/s", each.mbit, quartiles(parts), least, more=facts)
            )
            if theirs:
                one, other = ([rate * 8e-6 for rate in rates] for rates in (mine, theirs))
                found.append(beside(f"{case} / iperf3", one, other, each.payload, facts))
    target = plots / f"wan{'-loss' if lines[0].loss else ''} {lines[0].mbit:g}.png".replace(" ", "-")
    say(f"plot: {target}" if plot_progress(last, target) else "no plot: matplotlib is not installed")
    return found


def _best_of_iperf(line: Wan, where: Course) -> list[float]:
    """Bytes per second after the start-up, of as many bytes as ours: the best of one, four and eight streams,
    on a lossy line of as many as ours; nothing where it is not installed."""
    counts = (line.connections,) if line.loss else (1, 4, 8)
    runs = [iperf(where, count, size=line.megabytes << 20, congestion=line.congestion) for count in counts]
    rates = [run.rate(SKIP) for run in runs if run is not None]
    return [max(rates)] if rates else []


def beside(
    case: str, mine: Sequence[float], theirs: Sequence[float], payload: float, facts: dict[str, Any]
) -> Result:
    """At least as much as iperf3, both as what a reader got. What is more than a line's payload had queued
    before. Where every run of ours fills the line nothing can be more, but a buffer of 40 ms that is full as
    the first second ends, or not, is 1% of four seconds: then that much less counts as the same."""
    one, other = ([min(rate, payload) for rate in rates] for rates in (mine, theirs))
    found = paired(case, one, other, "Mbit/s", 1.0, **facts)
    if min(one) < FULL * payload:
        return found
    return replace(found, must=FULL, noise=0.0, more={**found.more, "fills_the_line": True})


def over(line: Wan, where: Course, *, most: float = 120.0, **changes: Any) -> Run:
    """One run of ours on a course, of `most` seconds; `changes` of the Setting."""
    setting = Setting(
        line.megabytes << 20,
        line.connections,
        line=line.spec,
        sender=where.near,
        receiver=where.far,
        transfer=16 << 20,
    )
    setting = replace(setting, **changes)
    return measure(receive_ours, send_ours, setting, most, where.through)


async def urgent(buffers: Sequence[float], megabytes: int, runs: int, say: Say) -> list[Result]:
    """1 MiB transfers, Poisson at a tenth of the rate, while a long one of a lower class runs. A run has so
    few of them that a P99 is its second slowest: several are taken together."""
    found = []
    size = 1 << 20
    for bdp, must in zip(buffers, (3.0, 6.0), strict=False):
        line = Wan(200, 40, megabytes, 2, buffer_bdp=bdp, cap_mbit=190)  # a little below, as advised
        draw = random.Random(1)
        took: list[float] = []
        async with course(line.impairment, say) as where:
            for at in range(runs):
                starts = tuple(_poisson(draw, 0.1 * line.rate / size, 0.8 * (megabytes << 20) / line.rate))
                run = await asyncio.to_thread(over, line, where, urgent=starts, urgent_bytes=size)
                took += run.took
                high, many = _p99(run.took), len(run.took)
                say(f"urgent, buffer {bdp:g} BDP, {at + 1}/{runs}: p99 {high:.3f} s of {many}")
        alone = size / line.rate + line.rtt_ms / 2e3
        again = [_p99(draw.choices(took, k=len(took))) / alone for _ in range(400)]  # how sure that is
        facts = {
            "transfers": len(took),
            "p50": round(statistics.median(took), 4),
            "p90": round(sorted(took)[int(0.9 * len(took))], 4),
            "engine": where.engine,
        }
        case = f"urgent p99, buffer {bdp:g} BDP"
        found.append(Result(case, _p99(took), "s", alone, quartiles(again), must, True, facts))
    return found


def _poisson(draw: random.Random, rate: float, end: float) -> Iterator[float]:
    """Moments at random, from the first second on."""
    now = 1.0
    while (now := now + draw.expovariate(rate)) < end:
        yield now


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def plot_progress(runs: dict[str, Run], path: Path) -> bool:
    """Mbit/s over time, as a PNG; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, run in runs.items():
        began = run.progress[0][0]
        points = run.progress[:: max(1, len(run.progress) // 200)]
        steps = list(pairwise(points))
        axes.plot(
            [two[0] - began for _, two in steps],
            [(two[1] - one[1]) * 8e-6 / max(two[0] - one[0], 1e-6) for one, two in steps],
            label=name,
        )
    axes.set_xlabel("seconds")
    axes.set_ylabel("Mbit/s")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True


def bbr() -> str:
    """The congestion control for a lossy line."""
    return "bbr" if "bbr" in congestion_controls() else ""


def _gbit(rate: float) -> str:
    return f"{rate * 8e-9:.2f}"
