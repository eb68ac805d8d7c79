"""The case `one-md-lost`: one of eight main decodes dies while the line is busy, and comes back empty.

What the others serve must not feel it, whoever is warm there must get no refusal for want of a relay, and
the sessions of the dead one come back over a part of the line only. Beside it the same without the death.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from benchmarks.command import say
from benchmarks.mesh.figures import done, median, quantile
from benchmarks.mesh.options import Options
from benchmarks.mesh.plots import Panel, distribution, draw
from benchmarks.mesh.traffic import Mix, Traffic
from benchmarks.report import Result, bounded, quartiles
from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh

LINE_LOAD = 0.7
RATE = 10.0
PLAN = MeshPlan(prefills=4, relays=2, mains=8)
MIX = Mix(first=12_000, added=800, new=0.02)
SESSIONS = 160
DOWN = 3.0
"""Seconds until it is there again."""

WARM = 0.8
"""Part of a prompt that main decode has, from which a request counts as warm."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One seed, with or without the death."""

    warm: tuple[float, ...]  # seconds to the second id, of warm requests after the moment of death
    refused: int  # requests that were sent away
    broken: int
    rewarm: float  # part of the line's bytes after it that brought sessions back
    rewarmed: float  # sessions


def case(options: Options) -> list[Result]:
    """Pairs of the same seed."""
    seconds = float(options.pick(8, 25, 90))
    seeds = options.chosen_seeds(1, 3, 5)
    jobs = [(seed, dies) for seed in seeds for dies in (True, False)]
    found = options.spread(partial(_one, seconds=seconds), jobs)
    lost, calm = found[::2], found[1::2]
    p99 = [quantile(each.warm, 0.99) for each in lost]
    base = [quantile(each.warm, 0.99) for each in calm]
    say(f"one-md-lost: warm ttst p99 {p99} beside {base}, re-warm {[round(each.rewarm, 3) for each in lost]}")
    named = {"one of eight dies": lost, "none": calm}
    curves = {name: distribution([at for each in runs for at in each.warm]) for name, runs in named.items()}
    draw(
        options.out / "one-md-lost.png",
        [Panel(curves, "seconds to the second token", "part of warm requests", logarithmic=True)],
    )
    return [
        Result(
            "one-md-lost warm ttst p99",
            median(p99),
            "s",
            median(base),
            quartiles([one / other for one, other in zip(p99, base, strict=True)]),
            1.5,
            most=True,
            more={"broken": sum(each.broken for each in lost)},
        ),
        bounded(
            "one-md-lost requests refused",
            [float(each.refused) for each in lost],
            "requests",
            0.0,
            most=True,
        ),
        bounded(
            "one-md-lost re-warming's part of the line",
            [each.rewarm for each in lost],
            "part",
            PLAN.router.rewarm_share,
            most=True,
            sessions=[each.rewarmed for each in lost],
        ),
    ]


def _one(job: tuple[int, bool], seconds: float) -> Loss:
    return run(job[0], seconds, dies=job[1])


def run(seed: int, seconds: float, *, dies: bool) -> Loss:
    """Turns of many sessions; in the middle one main decode dies and starts again."""
    spread = 1.197
    mean = ((1 - MIX.new) * MIX.added + MIX.new * MIX.first) * spread
    plan = replace(PLAN, wan_rate=RATE * mean * PLAN.token_bytes / LINE_LOAD)
    mesh = VirtualMesh(plan, seed)
    traffic = Traffic(mesh, MIX, seed)
    traffic.warm(SESSIONS)
    traffic.poisson(4.0, 4.0, "before")
    mesh.run(6.0)
    traffic.poisson(RATE, seconds, "before")
    mesh.run(seconds)
    sent = _aligned(mesh)
    crossed = mesh.wan_bytes
    traffic.poisson(RATE, seconds, "after")
    if dies:
        mesh.kill("md1")
        mesh.run(DOWN)
        mesh.boot("md1")
        mesh.run(seconds - DOWN)
    else:
        mesh.run(seconds)
    brought = (_aligned(mesh) - sent) / (mesh.wan_bytes - crossed)
    mesh.drain()
    after = [each for each in mesh.clients if each.tag == "after"]
    warm = [each for each in done(after) if _is_warm(each)]
    return Loss(
        tuple(each.ttst for each in warm),
        sum(each.outcome == "refused" for each in after),
        sum(each.outcome == "broken" for each in after),
        brought,
        mesh.counters.get("rewarmed_total", 0.0),
    )


def _is_warm(client: Client) -> bool:
    return int(client.trace["md_hit_tokens"]) >= WARM * client.prompt


def _aligned(mesh: VirtualMesh) -> float:
    """Real bytes that alignments and re-warming have sent."""
    return mesh.sum_of("kv_bytes_out_alignment_total") / mesh.plan.scale
