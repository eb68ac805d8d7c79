"""The case `collapse`: what happens where answers may end at the relay.

A burst of low hits comes to a mesh whose line is nearly full. Under a policy that only exists here the relay
finishes what it began and nothing follows to main decode; under the shipped one every answer ends there.
The first lets main decode's cache fall behind prefill's, which sends more and more work to the relay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.command import say
from benchmarks.mesh.options import Options
from benchmarks.mesh.plots import Curve, Panel, draw
from benchmarks.mesh.traffic import Mix, Traffic
from benchmarks.report import Result, bounded
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh
from shared.policy.config import RouterPolicy
from shared.wire.messages import Role

MIX = Mix(first=16_000, added=1_000, output=120, new=0.02, told=True)
SESSIONS = 20
RATE = 0.6
BURST = 0.6
"""Part of the arrivals that begin a session during the burst: nobody has anything of their prompts."""

PLACES = 4
"""Requests that the relay runs at once: it is small."""

PLAN = MeshPlan(
    prefills=2,
    relays=1,
    mains=2,
    wan_rate=2.5e9 / 8,
    relay_running=PLACES,
)
SHIPPED = "ends at main decode"
FINISHING = "may end at the relay"

AT_RELAY = RouterPolicy(
    singular_min_uncached=0,
    singular_max_output=1 << 20,
    singular_pool_fraction=1.0,
    session_memory=0,
)
"""Whatever a relay ends sooner than main decode could begin may end there, in any number, turn after turn."""


@dataclass(slots=True)
class Course:
    """One policy over time: seconds, parts and counts."""

    behind: list[tuple[float, float]] = field(default_factory=list)  # prefills hold, main decodes do not
    main: list[tuple[float, float]] = field(default_factory=list)  # part of sessions that main decodes hold
    relay: list[tuple[float, float]] = field(default_factory=list)  # part of the relay's places taken


def case(options: Options) -> list[Result]:
    """Both policies, some seeds."""
    seconds = float(options.pick(15, 40, 80))
    seeds = options.chosen_seeds(1, 3, 5)
    policies = {FINISHING: AT_RELAY, SHIPPED: RouterPolicy()}
    runs = {name: [run(policy, seed, seconds) for seed in seeds] for name, policy in policies.items()}
    for name, found in runs.items():
        behind = [round(_late(each.behind), 3) for each in found]
        full = [round(_late(each.relay), 2) for each in found]
        say(f"collapse, {name}: main decode behind by {behind}, relay {full} full")
    _plot(options, {name: found[0] for name, found in runs.items()}, seconds)
    shipped, finishing = runs[SHIPPED], runs[FINISHING]
    return [
        bounded(
            "collapse main decode's hits behind prefill's",
            [_late(each.behind) for each in shipped],
            "part",
            0.1,
            most=True,
            baselines=[max(1e-3, _late(each.behind)) for each in finishing],
        ),
        bounded(
            "collapse relay's places taken",
            [_late(each.relay) for each in shipped],
            "part",
            0.5,
            most=True,
            baselines=[_late(each.relay) for each in finishing],
        ),
        bounded(
            "collapse: with the policy that may end at the relay, main decode behind",
            [_late(each.behind) for each in finishing],
            "part",
            0.1,
            most=False,
        ),
    ]


def run(policy: RouterPolicy, seed: int, seconds: float) -> Course:
    """Calm, a burst of low hits as long, and three times as long calm again."""
    mesh = VirtualMesh(replace(PLAN, router=policy), seed)
    traffic = Traffic(mesh, MIX, seed)
    traffic.warm(SESSIONS)
    traffic.poisson(2.0, 4.0, "before")
    mesh.run(6.0)
    course = Course()
    began = mesh.sim.now
    for length, new in ((seconds, MIX.new), (seconds, BURST), (3 * seconds, MIX.new)):
        traffic.mix = replace(MIX, new=new)
        traffic.poisson(RATE, length, "offered")
        for _ in range(int(length)):
            mesh.run(1.0)
            _look(mesh, traffic, mesh.sim.now - began, course)
    return course


def _look(mesh: VirtualMesh, traffic: Traffic, now: float, course: Course) -> None:
    relays = [node for name, node in mesh.workers.items() if name.startswith("rld")]
    held = sum(node.worker.counts()["requests"] for node in relays)
    course.relay.append((now, held / (PLAN.relays * PLACES)))
    said = [each.ids for each in traffic.rest[:: max(1, len(traffic.rest) // SAMPLE)]]
    tokens = sum(map(len, said))
    if tokens:
        main = sum(mesh.held(ids, Role.MAIN) for ids in said) / tokens
        prefill = sum(mesh.held(ids, Role.PREFILL) for ids in said) / tokens
        course.main.append((now, main))
        course.behind.append((now, max(0.0, prefill - main)))


SAMPLE = 16
"""Sessions whose caches are looked at, about."""


def _late(curve: Sequence[tuple[float, float]]) -> float:
    """The mean of the last third."""
    last = [value for _, value in curve[2 * len(curve) // 3 :]]
    return sum(last) / len(last)


def _plot(options: Options, courses: dict[str, Course], seconds: float) -> None:
    marks = (seconds, 2 * seconds)

    def panel(what: str, title: str) -> Panel:
        curves: dict[str, Curve] = {name: getattr(course, what) for name, course in courses.items()}
        return Panel(curves, "seconds", "part", title, marks=marks)

    draw(
        options.out / "collapse.png",
        [
            panel("behind", "part that prefill holds and main decode lacks"),
            panel("main", "part of sessions that main decode holds"),
            panel("relay", "places taken at the relay"),
        ],
        columns=3,
    )
