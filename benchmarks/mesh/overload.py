"""The case `overload`: more than the mesh can do, of prefill and decoding, and of the line.

Offered load is in parts of what the mesh does in a closed loop that keeps all of it busy. Goodput must not
fall as the offer grows, whoever is sent away must hear so at once, and a line that is behind must harm
neither prefill's cache nor those who need little of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.command import say
from benchmarks.mesh.figures import Promise, done, goodput, median, quantile, refused
from benchmarks.mesh.options import Options
from benchmarks.mesh.plots import Panel, draw
from benchmarks.mesh.traffic import Mix, Traffic
from benchmarks.report import Result, bounded
from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh
from shared.errors import Overloaded

OFFERS = (0.5, 1.0, 2.0, 4.0)
PLAN = MeshPlan(wan_rate=40e9 / 8)
MIX = Mix(tenants=8)
SESSIONS = 200
CLIENTS = 96
"""Requests at a time that keep all of the mesh busy."""

PROMISE = Promise()
CALM = 0.5
LINE_PLAN = MeshPlan(prefills=4)
LINE_MIX = Mix(tenants=8, new=0.15)
LINE_LOADS = (0.7, 1.5)
HIGH = 0.9
"""Part of a prompt that main decode has, from which a request counts as a high hit."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What came of one offered load."""

    load: float
    rate: float  # requests/s
    goodput: float
    refused: float  # part of all
    slow: float  # P99 seconds until a refusal
    dated: float  # part of refusals that say when to come back
    wasted: float  # part of prefilled tokens
    normal: float  # seconds after its end until nobody is refused and second tokens are soon again
    ttst: float  # P50


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a load of the line did."""

    load: float
    free: float  # least part of prefill's pools that could be promised
    hit: float  # part of the prompts' tokens that prefills had
    high_ttst: float  # P99 of high hits
    refused: float


@dataclass(frozen=True, slots=True)
class Job:
    """One process's part: a seed."""

    seed: int
    seconds: float
    offers: tuple[float, ...]


def case(options: Options) -> list[Result]:
    """All offers, then the line."""
    seconds = float(options.pick(8, 20, 60))
    seeds = options.chosen_seeds(1, 3, 5)
    jobs = [Job(seed, seconds, OFFERS) for seed in seeds]
    found = options.spread(run, jobs)
    offers, backlogs = [one for one, _ in found], [one for _, one in found]
    for each in zip(*offers, strict=True):
        say(_offer_line(each))
    for line in zip(*backlogs, strict=True):
        say(_backlog_line(line))
    _plot(options, offers)
    return [*_offer_results(offers), *_backlog_results(backlogs)]


def run(job: Job) -> tuple[list[Offer], list[Backlog]]:
    """Every offer and every line load of one seed."""
    capacity = _capacity(job)
    offers = [_offer(job, load, capacity * load) for load in job.offers]
    return offers, [_backlog(job, load) for load in LINE_LOADS]


def _begin(plan: MeshPlan, mix: Mix, seed: int) -> tuple[VirtualMesh, Traffic]:
    """A mesh with warm caches whose speeds are known to the router."""
    mesh = VirtualMesh(plan, seed)
    traffic = Traffic(mesh, mix, seed)
    traffic.warm(SESSIONS)
    traffic.poisson(2.0, 3.0, "before")
    mesh.run(5.0)
    return mesh, traffic


def _capacity(job: Job) -> float:
    """Requests/s of a closed loop that keeps all of the mesh busy."""
    mesh, traffic = _begin(PLAN, MIX, job.seed)
    stop = traffic.closed(CLIENTS)
    mesh.run(5.0)
    began = mesh.sim.now
    mesh.run(job.seconds)
    stop()
    return sum(each.outcome == "done" and each.ended >= began for each in mesh.clients) / job.seconds


def _offer(job: Job, load: float, rate: float) -> Offer:
    mesh, traffic = _begin(PLAN, MIX, job.seed)
    began = mesh.sim.now
    traffic.poisson(rate, job.seconds, "offered")
    mesh.run(job.seconds)
    over = mesh.sim.now
    traffic.poisson(rate / load * CALM, AFTER, "after")
    mesh.run(AFTER)
    mesh.drain()
    offered = [each for each in mesh.clients if each.tag == "offered"]
    sent = refused(offered)
    computed = sum(
        node.engine.stats.computed_tokens
        for name, node in mesh.workers.items()
        if name.startswith("p") and node.engine is not None
    )
    return Offer(
        load,
        rate,
        goodput(offered, over - began, PROMISE),
        len(sent) / max(1, len(offered)),
        quantile((each.ended - each.submitted for each in sent), 0.99) if sent else 0.0,
        sum(_dated(each) for each in sent) / max(1, len(sent)),
        mesh.counters.get("prefill_wasted_tokens_total", 0.0) / max(1, computed),
        _normal([each for each in mesh.clients if each.tag == "after"], over),
        quantile((each.ttst for each in done(offered)), 0.5),
    )


AFTER = 15.0
"""Seconds of calm that are looked at after an offer."""

SOON = 3.0
"""Seconds to the second token that count as normal: nine of ten have it sooner at the calm load."""

WINDOW = 3.0
"""Seconds of arrivals that are judged together."""


def _dated(client: Client) -> bool:
    return isinstance(client.error, Overloaded) and client.error.retry_after >= 1.0


def _normal(after: Sequence[Client], over: float) -> float:
    """Seconds until a window in which nobody was refused and nine of ten had their second token soon."""
    at = 0.0
    while at < AFTER:
        window = [each for each in after if at <= each.submitted - over < at + WINDOW]
        calm = all(each.outcome == "done" for each in window)
        if calm and quantile((each.ttst for each in window), 0.9) <= SOON:
            return at
        at += 0.5
    return AFTER


# --- the line -----------------------------------------------------------------------------------------------


def _backlog(job: Job, load: float) -> Backlog:
    plan = replace(LINE_PLAN, wan_rate=_line_rate() / load)
    mesh, traffic = _begin(plan, LINE_MIX, job.seed)
    seconds = 2 * job.seconds
    least = [1.0]
    traffic.poisson(LINE_RATE, seconds, "offered")
    for _ in range(int(4 * seconds)):
        mesh.run(0.25)
        pools = [node.pool for name, node in mesh.workers.items() if name.startswith("p")]
        least.append(min(pool.available / pool.total for pool in pools))
    mesh.drain()
    offered = [each for each in mesh.clients if each.tag == "offered"]
    ended = done(offered)
    high = [each for each in ended if each.trace["md_hit_tokens"] >= HIGH * each.prompt]
    tokens = sum(each.prompt for each in ended)
    computed = sum(
        node.engine.stats.computed_tokens
        for name, node in mesh.workers.items()
        if name.startswith("p") and node.engine is not None
    )
    return Backlog(
        load,
        min(least),
        max(0.0, 1 - computed / max(1, tokens)),
        quantile((each.ttst for each in high), 0.99),
        len(refused(offered)) / max(1, len(offered)),
    )


LINE_RATE = 10.0
"""Requests/s of the cases about the line: they keep prefills busy for 0.3 of the time."""


def _line_rate() -> float:
    """Bytes/s of KV that the line's mix asks for."""
    spread = 1.197  # mean over median of a log-normal with sigma 0.6
    added = (1 - LINE_MIX.new) * LINE_MIX.added + LINE_MIX.new * LINE_MIX.first
    return LINE_RATE * added * spread * LINE_PLAN.token_bytes


# --- what is said -------------------------------------------------------------------------------------------


def _offer_results(offers: Sequence[Sequence[Offer]]) -> list[Result]:
    peaks = [max(each.goodput for each in one) for one in offers]
    last = [one[-1] for one in offers]
    ratios = [one.goodput / peak for one, peak in zip(last, peaks, strict=True)]
    return [
        bounded(
            "overload goodput at 4 x / the peak",
            ratios,
            "part",
            0.9,
            most=False,
            goodput=[round(median([one[at].goodput for one in offers]), 2) for at in range(len(OFFERS))],
            refused=[round(median([one[at].refused for one in offers]), 3) for at in range(len(OFFERS))],
            offers=OFFERS,
        ),
        bounded("overload refusals p99", [1e3 * each.slow for each in last], "ms", 50.0, most=True),
        bounded("overload refusals with Retry-After", [each.dated for each in last], "part", 1.0, most=False),
        bounded(
            "overload prefilled tokens wasted",
            [max(each.wasted for each in one) for one in offers],
            "part",
            0.05,
            most=True,
        ),
        bounded(
            "overload normal again after",
            [max(each.normal for each in one) for one in offers],
            "s",
            5.0,
            most=True,
        ),
    ]


def _backlog_results(backlogs: Sequence[Sequence[Backlog]]) -> list[Result]:
    calm, behind = [one[0] for one in backlogs], [one[-1] for one in backlogs]
    return [
        bounded(
            "overload line 1.5: free blocks of prefills at least",
            [each.free for each in behind],
            "part",
            0.5,
            most=False,
            baselines=[each.free for each in calm],
        ),
        bounded(
            "overload line 1.5: hits of prefills / at 0.7",
            [one.hit / other.hit for one, other in zip(behind, calm, strict=True)],
            "ratio",
            0.95,
            most=False,
        ),
        bounded(
            "overload line 1.5: high hits' ttst p99 / at 0.7",
            [one.high_ttst / other.high_ttst for one, other in zip(behind, calm, strict=True)],
            "ratio",
            1.5,
            most=True,
            seconds=round(median([each.high_ttst for each in behind]), 3),
            refused=round(median([each.refused for each in behind]), 3),
        ),
    ]


def _offer_line(each: Sequence[Offer]) -> str:
    sent = median([o.refused for o in each])
    return (
        f"offered {each[0].load} x = {median([o.rate for o in each]):.1f}/s:"
        f" goodput {median([o.goodput for o in each]):.2f}/s, refused {sent:.2f},"
        f" ttst p50 {median([o.ttst for o in each]):.2f} s, wasted {max(o.wasted for o in each):.4f},"
        f" normal after {max(o.normal for o in each):.1f} s"
    )


def _backlog_line(each: Sequence[Backlog]) -> str:
    hit = median([o.hit for o in each])
    return (
        f"line load {each[0].load}: free {min(o.free for o in each):.2f}, hit {hit:.3f},"
        f" high hits' ttst p99 {median([o.high_ttst for o in each]):.2f} s,"
        f" refused {median([o.refused for o in each]):.2f}"
    )


def _plot(options: Options, offers: Sequence[Sequence[Offer]]) -> None:
    served = {f"seed {at}": [(each.load, each.goodput) for each in one] for at, one in enumerate(offers, 1)}
    sent = {f"seed {at}": [(each.load, each.refused) for each in one] for at, one in enumerate(offers, 1)}
    across = "offered load / capacity"
    draw(
        options.out / "overload.png",
        [
            Panel(served, across, "answers a second that kept the promise", "goodput"),
            Panel(sent, across, "part of requests", "refused"),
        ],
    )
