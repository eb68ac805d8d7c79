"""The case `baselines`: the agentic trace on four systems that are the same code, differently configured.

PD inside one datacenter; PD across two, without a decode cache and first come first served on the line;
the same with the decode cache (DRC) and the line's order; and PDD as it is shipped. In all four prefill
shows its first token, so the second one is what tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.command import say
from benchmarks.mesh.figures import Promise, done, goodput, median, quantile, refused, relay_share
from benchmarks.mesh.options import Options
from benchmarks.mesh.plots import Panel, distribution, draw
from benchmarks.mesh.trace_load import TraceLoad, drawn_rows, rows_of
from benchmarks.report import Result, quartiles
from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh
from shared.policy.config import LinePolicy, RouterPolicy

LOAD = 0.9
PRELUDE = 30.0
"""Seconds of the window that only fill the queues."""

PATIENT: dict[str, Any] = {"queue_wait": 60.0}
"""Nobody is sent away for waiting at prefill: what is compared is how long things take."""

PLAN = MeshPlan(
    prefills=4,
    relays=1,
    mains=2,
    prefill_blocks=60_000,
    relay_blocks=16_000,
    main_blocks=120_000,
    router=RouterPolicy(**PATIENT),
)
PLAIN = RouterPolicy(relay=False, singular=False, md_local_tokens=0, **PATIENT)

SYSTEMS: Mapping[str, MeshPlan] = {
    "PD in one datacenter": replace(PLAN, main_in_a=True, router=PLAIN),
    "naive PD across": replace(PLAN, router=PLAIN, line=LinePolicy(oldest_share=1.0), dealt=False),
    "DRC only": replace(PLAN, router=PLAIN),
    "PDD": PLAN,
}
NAIVE, INSIDE, DRC, PDD = "naive PD across", "PD in one datacenter", "DRC only", "PDD"

MEASURES = ("ttft", "ttst", "stall", "end")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One system on one window: seconds of the answered requests by measure, and totals."""

    times: Mapping[str, tuple[float, ...]]
    asked: int
    refused: int
    broken: int
    wan_bytes: float
    relay: float
    goodput: float
    pipelines: Mapping[str, int]

    def at(self, measure: str, part: float) -> float:
        """A quantile."""
        return quantile(self.times[measure], part)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process runs."""

    system: str
    seed: int
    seconds: float
    trace: Path


def run(job: Job) -> Outcome:
    """One system, one window."""
    plan = SYSTEMS[job.system]
    rows = rows_of(job.trace) if job.trace.is_file() else drawn_rows(job.seed)
    pace = LOAD * plan.wan_rate / plan.token_bytes
    load = TraceLoad(rows, job.seed, pace=pace, seconds=job.seconds)
    # A window of a heavy-tailed trace asks for more or less than its part: the line is made to fit.
    plan = replace(plan, wan_rate=load.lacking * plan.token_bytes / (LOAD * job.seconds))
    mesh = VirtualMesh(plan, job.seed)
    _warm(mesh, load, decoders=job.system != NAIVE)
    if job.system == NAIVE:
        mesh.ended = lambda _: mesh.forget()
    began = mesh.sim.now
    for each in load.asked:
        mesh.sim.run(began + each.at, most=1 << 40)
        mesh.submit(
            load.prompt(each.session, each.index),
            load.outputs(each.session, each.index),
            seed=load.seed_of(each.session, each.index),
            max_tokens=32_000,
            session=each.session.to_bytes(8, "big"),
        )
    crossed = mesh.wan_bytes
    mesh.drain()
    counted = [each for each in mesh.clients if each.submitted >= began + PRELUDE]
    return _outcome(counted, job.seconds - PRELUDE, crossed)


def _warm(mesh: VirtualMesh, load: TraceLoad, *, decoders: bool) -> None:
    """What sessions said before the window is in the caches: answers are only where they were drawn."""
    plan = mesh.plan
    for session, index in sorted(load.warm):
        mesh.seed(load.prompt(session, index), f"p{1 + session % plan.prefills}")
        if decoders:
            mesh.seed(load.said(session, index), f"md{1 + session % plan.mains}")
    mesh.run(2.0)


def _outcome(clients: Sequence[Client], seconds: float, crossed: float) -> Outcome:
    ended = done(clients)
    pipelines: dict[str, int] = {}
    for each in ended:
        name = str(each.trace["pipeline"])
        pipelines[name] = pipelines.get(name, 0) + 1
    return Outcome(
        {
            "ttft": tuple(each.ttft for each in ended),
            "ttst": tuple(each.ttst for each in ended),
            "stall": tuple(each.stall for each in ended),
            "end": tuple(each.ended - each.submitted for each in ended),
        },
        len(clients),
        len(refused(clients)),
        len(clients) - len(ended) - len(refused(clients)),
        crossed,
        relay_share(clients),
        goodput(clients, seconds, Promise(ttst=15.0)),
        pipelines,
    )


# --- the case -----------------------------------------------------------------------------------------------


def case(options: Options) -> list[Result]:
    """All systems on the same windows."""
    if not options.trace.is_file():
        say(f"no trace at {options.trace} (--trace): sessions of its kind are drawn")
    seconds = float(options.pick(60, 120, 400))
    seeds = options.chosen_seeds(1, 3, 5)
    jobs = [Job(system, seed, seconds, options.trace) for seed in seeds for system in SYSTEMS]
    found = options.spread(run, jobs)
    runs: dict[str, list[Outcome]] = {name: [] for name in SYSTEMS}
    for job, outcome in zip(jobs, found, strict=True):
        runs[job.system].append(outcome)
    for name, outcomes in runs.items():
        say(_line(name, outcomes))
    _plot(options.out / "baselines.png", runs)
    return results(runs)


def results(runs: Mapping[str, Sequence[Outcome]]) -> list[Result]:
    """The musts, then every figure of each system beside PD in one datacenter."""
    inside, drc, pdd = runs[INSIDE], runs[DRC], runs[PDD]
    found = [
        _against("baselines PDD ttst p50 / in one datacenter", pdd, inside, "ttst", 0.5, 1.1),
        _against("baselines PDD ttst p99 / DRC only", pdd, drc, "ttst", 0.99, 0.6),
        Result(
            "baselines PDD relay's share of tokens",
            median([each.relay for each in pdd]),
            "part",
            must=0.1,
            most=True,
            spread=quartiles([each.relay for each in pdd]),
        ),
    ]
    for name, outcomes in runs.items():
        found += [
            _against(f"baselines {name} {what} p{round(100 * part)}", outcomes, inside, what, part, None)
            for what in MEASURES
            for part in (0.5, 0.9, 0.99)
        ]
        found.append(_totals(name, outcomes, inside))
    return found


def _against(
    case: str,
    ours: Sequence[Outcome],
    others: Sequence[Outcome],
    measure: str,
    part: float,
    must: float | None,
) -> Result:
    values = [each.at(measure, part) for each in ours]
    baselines = [each.at(measure, part) for each in others]
    ratios = [one / other for one, other in zip(values, baselines, strict=True)]
    return Result(case, median(values), "s", median(baselines), quartiles(ratios), must, most=True)


def _totals(name: str, ours: Sequence[Outcome], inside: Sequence[Outcome]) -> Result:
    pipelines: dict[str, int] = {}
    for each in ours:
        for road, count in each.pipelines.items():
            pipelines[road] = pipelines.get(road, 0) + count
    ratios = [one.goodput / max(1e-9, other.goodput) for one, other in zip(ours, inside, strict=True)]
    more = {
        "wan_gbytes": round(median([each.wan_bytes for each in ours]) / 1e9, 2),
        "relay_tokens": round(median([each.relay for each in ours]), 4),
        "refused": round(median([each.refused / max(1, each.asked) for each in ours]), 4),
        "broken": sum(each.broken for each in ours),
        "requests": sum(each.asked for each in ours),
        "pipelines": pipelines,
    }
    return Result(
        f"baselines {name} goodput",
        median([each.goodput for each in ours]),
        "requests/s",
        median([each.goodput for each in inside]),
        quartiles(ratios),
        more=more,
    )


def _line(name: str, outcomes: Sequence[Outcome]) -> str:
    shown = []
    for what in MEASURES:
        parts = (f"{median([one.at(what, part) for one in outcomes]):.2f}" for part in (0.5, 0.9, 0.99))
        shown.append(f"{what} {' '.join(parts)}")
    lost = sum(each.refused for each in outcomes) / max(1, sum(each.asked for each in outcomes))
    return f"{name}: {', '.join(shown)}, relay {median([o.relay for o in outcomes]):.3f}, refused {lost:.2f}"


def _plot(path: Path, runs: Mapping[str, Sequence[Outcome]]) -> None:
    titles = {
        "ttft": "first token",
        "ttst": "second token",
        "stall": "longest wait between tokens",
        "end": "whole answer",
    }
    panels = [
        Panel(
            {
                name: distribution([max(t, 1e-3) for each in outcomes for t in each.times[what]])
                for name, outcomes in runs.items()
            },
            "seconds",
            "part of the answered requests",
            title,
            logarithmic=True,
        )
        for what, title in titles.items()
    ]
    draw(path, panels)
