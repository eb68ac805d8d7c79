"""The case `skew`: sessions of which few are very active, one system prompt that all share, and a worker that
joins in the middle. The load has to be even all the same, and the newcomer must not be flooded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.command import say
from benchmarks.mesh.figures import done, median, quantile
from benchmarks.mesh.options import Options
from benchmarks.mesh.plots import Panel, draw
from benchmarks.mesh.traffic import Mix, Session, Traffic
from benchmarks.report import Result, bounded
from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh

PLAN = MeshPlan(prefills=4, relays=1, mains=4, wan_rate=40e9 / 8)
MIX = Mix(first=6_000, system=4_096, new=0.05)
SESSIONS = 100
ZIPF = 1.0
"""The k-th session has 1/k of the first one's turns."""

RATE = 12.0
NEWCOMERS = ("md5", "p5")


@dataclass(frozen=True, slots=True)
class Skewed:
    """One seed: loads by worker, and what the newcomers got in their first seconds."""

    main: float  # greatest load of a main decode, in tokens drawn, over the mean
    prefill: float  # the same of prefills, in tokens computed
    share: float  # a newcomer's part of what came while it joined, over a fair part
    later: float  # the same of what came afterwards
    ttst: float  # P99 while it joined
    tokens: dict[str, list[tuple[float, float]]]  # by main decode, over time


def case(options: Options) -> list[Result]:
    """Some seeds."""
    seconds = float(options.pick(8, 30, 120))
    found = options.spread(partial(run, seconds=seconds), options.chosen_seeds(1, 3, 5))
    for each in found:
        say(
            f"skew: main {each.main:.2f}, prefill {each.prefill:.2f}, newcomers {each.share:.2f},"
            f" later {each.later:.2f}, ttst p99 {each.ttst:.2f} s"
        )
    title = "main decodes; md5 joins"
    panel = Panel(dict(found[0].tokens), "seconds", "tokens a second", title, marks=(seconds,))
    draw(options.out / "skew.png", [panel])
    return [
        bounded("skew main decodes' load, max/mean", [each.main for each in found], "ratio", 1.5, most=True),
        bounded("skew prefills' load, max/mean", [each.prefill for each in found], "ratio", 1.5, most=True),
        bounded(
            "skew a newcomer's share / fair",
            [each.share for each in found],
            "ratio",
            1.5,
            most=True,
            later=round(median([each.later for each in found]), 2),
            ttst_p99=round(median([each.ttst for each in found]), 3),
        ),
    ]


def run(seed: int, seconds: float) -> Skewed:
    """Even load first, then two workers join."""
    mesh = VirtualMesh(PLAN, seed)
    traffic = Traffic(mesh, MIX, seed)
    traffic.warm(SESSIONS)
    traffic.choose = Zipf(traffic.rest, seed)
    traffic.poisson(2.0, 5.0, "before")
    mesh.run(8.0)
    began = mesh.sim.now
    before = _computed(mesh)
    traffic.poisson(RATE, seconds, "even")
    mesh.run(seconds)
    work = _computed(mesh)
    work.subtract(before)
    for name in NEWCOMERS:
        mesh.boot(name)
    traffic.poisson(RATE, RAMP, "joining")
    mesh.run(RAMP)
    traffic.poisson(RATE, seconds, "later")
    mesh.run(seconds)
    mesh.drain()
    ended = done(mesh.clients)
    by = {tag: [each for each in ended if each.tag == tag] for tag in ("even", "joining", "later")}
    return Skewed(
        _spread(_loads(by["even"], "main_decode"), PLAN.mains),
        _spread(work, PLAN.prefills),
        max(_share(by["joining"], "main_decode", "md5"), _share(by["joining"], "prefill", "p5")),
        max(_share(by["later"], "main_decode", "md5"), _share(by["later"], "prefill", "p5")),
        quantile((each.ttst for each in by["joining"]), 0.99),
        _over_time(mesh.clients, began),
    )


RAMP = 10.0
"""Seconds in which a newcomer is brought to its share."""


class Zipf:
    """Picks the session whose turn it is: few have most. A busy one is asked again beside its own turn."""

    def __init__(self, sessions: Sequence[Session], seed: int) -> None:
        self._sessions = list(sessions)
        self._weights = [1 / (at + 1) ** ZIPF for at in range(len(self._sessions))]
        self._random = random.Random(f"zipf {seed}")

    def __call__(self, traffic: Traffic) -> Session:
        """One of them; grown too long it begins anew."""
        at = self._random.choices(range(len(self._sessions)), self._weights)[0]
        session = self._sessions[at]
        if len(session.ids) > MIX.longest:
            session = self._sessions[at] = traffic.begin()
        return session


def _loads(clients: Sequence[Client], role: str) -> Counter[str]:
    loads: Counter[str] = Counter()
    for each in clients:
        node = each.trace["nodes"].get(role)
        if node:
            loads[node] += each.made if role == "main_decode" else 1
    return loads


def _computed(mesh: VirtualMesh) -> Counter[str]:
    """Tokens that each prefill has computed."""
    return Counter(
        {
            name: node.engine.stats.computed_tokens
            for name, node in mesh.workers.items()
            if name.startswith("p") and node.engine is not None
        }
    )


def _spread(loads: Counter[str], workers: int) -> float:
    return max(loads.values()) / (loads.total() / workers)


def _share(clients: Sequence[Client], role: str, node: str) -> float:
    loads = _loads(clients, role)
    workers = 1 + (PLAN.mains if role == "main_decode" else PLAN.prefills)
    return loads[node] / loads.total() * workers


def _over_time(
    clients: Sequence[Client], began: float, step: float = 2.0
) -> dict[str, list[tuple[float, float]]]:
    counts: dict[str, Counter[int]] = {}
    for each in done(clients):
        node = each.trace["nodes"].get("main_decode")
        if node and each.ended >= began:
            counts.setdefault(node, Counter())[int((each.ended - began) / step)] += each.made
    last = max((max(one) for one in counts.values()), default=0)
    return {
        node: [(at * step, one[at] / step) for at in range(last + 1)] for node, one in sorted(counts.items())
    }
