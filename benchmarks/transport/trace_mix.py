"""The agentic trace over one line in virtual time: our order against first come first served and fair share.

No sockets and no clock: the send queue and the dealing of the line are the real ones, the line is arithmetic.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Result, quartiles
from benchmarks.transport.agentic import DEFAULT, arrivals, sessions
from benchmarks.transport.disciplines import fair_share, first_come
from benchmarks.transport.shared_line import Dealing, SharedLine

LONG = 0.5
"""Seconds above which a transfer counts as long."""


@dataclass(frozen=True, slots=True)
class Mix:
    """What is simulated. The defaults are a line of 10 Gbit/s and a model with 70,272 bytes of KV per token
    (61 layers of a 576-wide latent in bf16), a decoder's cache that forgets nothing."""

    trace: Path = DEFAULT
    load: float = 0.9
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    senders: tuple[int, ...] = (1, 4, 16)
    rate: float = 10e9 / 8
    token_bytes: int = 70_272
    idle: float = 0.0
    most_sessions: int | None = None
    dealing: Dealing = field(default_factory=Dealing)


@dataclass(frozen=True, slots=True)
class Times:
    """How long the transfers of one run took."""

    mean: float
    median: float
    long: float  # part of them that took over LONG
    large: float  # P99 of the largest 1%
    sample: tuple[float, ...]  # permilles, for plots

    @classmethod
    def of(cls, took: Sequence[float], sizes: Sequence[int]) -> Times:
        ordered = sorted(took)
        largest = sorted(range(len(sizes)), key=lambda at: -sizes[at])[: max(1, len(sizes) // 100)]
        large = sorted(took[at] for at in largest)
        return cls(
            statistics.fmean(took),
            _at(ordered, 0.5),
            sum(each > LONG for each in took) / len(took),
            _at(large, 0.99),
            tuple(_at(ordered, part / 1000) for part in range(1001)),
        )


def _at(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


Runs = dict[str, list[Times]]
"""By discipline: `first come`, `fair share`, and `ours N` with N senders; one Times a seed."""


def simulate(mix: Mix, processes: int = 1) -> Runs:
    """All runs of a mix. Raises OSError where the trace is not there."""
    if not mix.trace.is_file():
        raise FileNotFoundError(f"no trace at {mix.trace}; name it with --trace")
    kinds: list[str | int] = ["first come", "fair share", *mix.senders]
    jobs = [(mix, seed, what) for seed in mix.seeds for what in kinds]
    if processes == 1:
        found = list(map(_run, jobs))
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            found = pool.map(_run, jobs, chunksize=1)
    runs: Runs = {}
    for (_, _, what), times in zip(jobs, found, strict=True):
        runs.setdefault(what if isinstance(what, str) else f"ours {what}", []).append(times)
    return runs


def _run(job: tuple[Mix, int, str | int]) -> Times:
    mix, seed, what = job
    trace = sessions(mix.trace, mix.idle, mix.most_sessions)
    coming = arrivals(trace, seed, load=mix.load, rate=mix.rate, token_bytes=mix.token_bytes)
    if what == "first come":
        took = first_come(coming, mix.rate)
    elif what == "fair share":
        took = fair_share(coming, mix.rate)
    else:
        assert isinstance(what, int)
        draw = random.Random(seed)
        place = [draw.randrange(what) for _ in trace]
        took = SharedLine(mix.rate, what, mix.dealing).serve(coming, place)
    return Times.of(took, [each.size for each in coming])


def results(mix: Mix, runs: Runs) -> Iterator[Result]:
    """Each number of ours beside its baseline of the same seed."""
    fifo, fair = runs["first come"], runs["fair share"]
    facts: dict[str, Any] = {"load": mix.load, "seeds": len(mix.seeds), "gbit": mix.rate * 8 / 1e9}
    for senders in mix.senders:
        ours = runs[f"ours {senders}"]
        name = f"trace-mix/{senders}"
        yield _against(f"{name} mean", _each(ours, "mean"), _each(fifo, "mean"), 0.15, facts)
        yield _against(f"{name} p50", _each(ours, "median"), _each(fifo, "median"), 0.02, facts)
        yield _against(
            f"{name} largest 1% p99 / FIFO", _each(ours, "large"), _each(fifo, "large"), 2.0, facts
        )
        yield _against(
            f"{name} largest 1% p99 / fair", _each(ours, "large"), _each(fair, "large"), 0.6, facts
        )
        long = _each(ours, "long")
        yield Result(
            f"{name} share over 0.5 s",
            statistics.median(long),
            "part",
            1.0,
            quartiles(long),
            0.2,
            True,
            facts,
        )
    few, many = min(mix.senders), max(mix.senders)
    if few != many:
        one, other = _each(runs[f"ours {many}"], "median"), _each(runs[f"ours {few}"], "median")
        yield _against(f"trace-mix p50 at {many} / at {few}", one, other, 2.0, facts)


def _each(times: Sequence[Times], what: str) -> list[float]:
    return [getattr(each, what) for each in times]


def _against(
    case: str, values: Sequence[float], baselines: Sequence[float], must: float, facts: dict[str, Any]
) -> Result:
    ratios = [one / other for one, other in zip(values, baselines, strict=True)]
    middle = statistics.median(baselines)
    return Result(case, statistics.median(values), "s", middle, quartiles(ratios), must, True, facts)


def plot(runs: Runs, path: Path) -> bool:
    """How many transfers took at most so long, as a PNG; False where matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, times in runs.items():
        middle = [statistics.median(each) for each in zip(*(one.sample for one in times), strict=True)]
        axes.plot([max(each, 1e-3) for each in middle], [at / 1000 for at in range(1001)], label=name)
    axes.set_xscale("log")
    axes.set_xlabel("seconds from arrival to the last byte (median of the seeds)")
    axes.set_ylabel("part of all transfers")
    axes.axvline(LONG, color="grey", linewidth=0.5)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True
