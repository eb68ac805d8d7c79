"""The case `collapse`: what happens where answers may end at the relay.

A burst of low hits comes to a mesh whose line cannot carry it. Under a policy that only exists here whatever
goes to a relay ends there and nothing follows to main decode; under the shipped one every answer ends at main
decode. The first lets main decode's cache fall behind prefill's: the next turn of each such session lacks
all of it and goes to the relay again, which is sized for handing over and not for whole answers. It fills up,
its steps get long, and it has no place for those that come after: these wait for the line. (That they do is
also what brings some of those sessions back: a relay that refuses slows the circle, it does not end it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from benchmarks.command import say
from benchmarks.mesh.figures import done, quantile
from benchmarks.mesh.options import Options
from benchmarks.mesh.plots import Curve, Panel, draw
from benchmarks.mesh.traffic import Mix, Traffic
from benchmarks.report import Result, bounded
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh
from benchmarks.simulation.nodes import Node
from benchmarks.simulation.timed import StepCosts
from services.router.index import Match
from services.router.placement import Placement
from services.router.wish import Candidate, NoRoad, Plan, Wish
from services.router.worker import PoolKey, Worker
from shared.policy.config import RouterPolicy, WorkerPolicy
from shared.policy.pipeline import Pipeline
from shared.wire.messages import Attach, Message, Role, TransferClass

MIX = Mix(first=16_000, added=1_000, output=300, new=0.02, told=True)
SESSIONS = 20
RATE = 0.6
BURST = 0.6
"""Part of the arrivals that begin a session during the burst: nobody has anything of their prompts."""

PLACES = 16
"""Requests that the relay runs at once."""

ROW = 0.008
"""Seconds by which each of them makes the relay's steps longer: it is small, 110 ids a second in all where
the sessions ask for 215."""

PLAN = MeshPlan(
    prefills=2,
    relays=1,
    mains=2,
    wan_rate=2.5e9 / 8,
    relay=StepCosts(row=ROW),
    relay_running=PLACES,
)
SHIPPED = "ends at main decode"
FINISHING = "ends at the relay"

LOW_HIT = 0.5
"""Seconds that a relay has to gain under the policy of this case: low hits go there, high ones do not."""

UNBOUND = replace(
    PLAN,
    router=RouterPolicy(session_memory=0, relay_margin=LOW_HIT),  # answers are as long as clients say
    worker=WorkerPolicy(relay_max_tokens=1 << 20),
)
"""What bounds the shipped relay is off."""

PLANS = {FINISHING: UNBOUND, SHIPPED: PLAN}


class Watched(Placement):
    """Placement that counts who was given a relay. `ends`: whatever goes to a relay ends there."""

    def __init__(self, mesh: VirtualMesh, *, ends: bool) -> None:
        room = mesh.core.mesh
        super().__init__(room.policy, room.worker, room.fleet, room.index)
        self._ends = ends
        self._margin = room.policy.relay_margin
        self.given = 0
        self.refused = 0

    def plan(self, now: float, pool: PoolKey, wish: Wish, sender: Worker | None = None) -> Plan | NoRoad:
        """As it is, but for the end."""
        plan = super().plan(now, pool, wish, sender)
        if isinstance(plan, NoRoad):
            return plan
        return replace(plan, chosen=self._ended(plan.chosen), pipeline=self._end(plan.pipeline))

    def road(
        self,
        now: float,
        pool: PoolKey,
        wish: Wish,
        main: Worker,
        match: Match,
        sender: Worker | None = None,
    ) -> Candidate:
        """The same; this is what decides."""
        road = super().road(now, pool, wish, main, match, sender)
        if road.pipeline in (Pipeline.P_RLD_MD, Pipeline.P_RLD):
            self.given += 1
        elif road.pipeline is Pipeline.P_MD and wish.relay_allowed and road.t_relay is None:
            self.refused += road.t_main - road.t_prefill > self._margin
        return self._ended(road)

    def _ended(self, road: Candidate) -> Candidate:
        return road if road.pipeline is None else replace(road, pipeline=self._end(road.pipeline))

    def _end(self, pipeline: Pipeline) -> Pipeline:
        return Pipeline.P_RLD if self._ends and pipeline is Pipeline.P_RLD_MD else pipeline


def nothing_parked(_source: Node, _target: Node, message: Message) -> Message:
    """What is for later, where an answer ends at a relay, is never sent: there is nothing to follow."""
    if isinstance(message, Attach) and message.cls is TransferClass.PARKED:
        return msgspec.structs.replace(message, have=message.upto)
    return message


@dataclass(slots=True)
class Course:
    """One policy over time: seconds, parts and counts."""

    behind: list[tuple[float, float]] = field(default_factory=list)  # prefills hold, main decodes do not
    main: list[tuple[float, float]] = field(default_factory=list)  # part of sessions that main decodes hold
    relay: list[tuple[float, float]] = field(default_factory=list)  # part of the relay's places taken
    given: list[tuple[float, int]] = field(default_factory=list)  # requests that got a relay so far
    refused: list[tuple[float, int]] = field(default_factory=list)  # that would have gained by one so far
    ttst: list[tuple[float, float]] = field(default_factory=list)  # of the requests that came then

    @property
    def without(self) -> Curve:
        """Part of those that would gain by a relay for which it had no place, over `SPAN` seconds."""
        found = []
        for at in range(SPAN, len(self.given)):
            given = self.given[at][1] - self.given[at - SPAN][1]
            refused = self.refused[at][1] - self.refused[at - SPAN][1]
            found.append((self.given[at][0], refused / max(1, given + refused)))
        return found

    @property
    def turned_away(self) -> float:
        """The same from the beginning of the burst on."""
        first = len(self.given) // 5
        given = self.given[-1][1] - self.given[first][1]
        refused = self.refused[-1][1] - self.refused[first][1]
        return refused / max(1, given + refused)

    @property
    def slow(self) -> float:
        """Seconds to the second id that nine of ten keep to, of those that came in the last third."""
        began = self.behind[2 * len(self.behind) // 3][0]
        return quantile((seconds for at, seconds in self.ttst if at >= began), 0.9)


SPAN = 20
"""Seconds over which requests without a relay are counted in the plot."""


def case(options: Options) -> list[Result]:
    """Both policies, some seeds."""
    seconds = float(options.pick(15, 40, 80))
    seeds = options.chosen_seeds(1, 3, 5)
    jobs = [Job(name, seed, seconds) for seed in seeds for name in PLANS]
    found = options.spread(run, jobs)
    runs: dict[str, list[Course]] = {name: [] for name in PLANS}
    for job, course in zip(jobs, found, strict=True):
        runs[job.policy].append(course)
    for name, courses in runs.items():
        say(f"collapse, {name}: " + "; ".join(_line(each) for each in courses))
    _plot(options, {name: courses[0] for name, courses in runs.items()}, seconds)
    return results(runs[SHIPPED], runs[FINISHING])


def results(shipped: Sequence[Course], finishing: Sequence[Course]) -> list[Result]:
    """What the shipped policy keeps to, each beside the other one; then that the other one does not."""
    return [
        bounded(
            "collapse main decode's hits behind prefill's",
            [_late(each.behind) for each in shipped],
            "part",
            BEHIND,
            most=True,
            baselines=[max(1e-3, _late(each.behind)) for each in finishing],
        ),
        bounded(
            "collapse relay's places taken",
            [_late(each.relay) for each in shipped],
            "part",
            TAKEN,
            most=True,
            baselines=[max(1e-3, _late(each.relay)) for each in finishing],
        ),
        bounded(
            "collapse requests for which the relay had no place",
            [each.turned_away for each in shipped],
            "part",
            TURNED_AWAY,
            most=True,
            baselines=[max(1e-3, each.turned_away) for each in finishing],
        ),
        bounded(
            "collapse ttst p90",
            [each.slow for each in shipped],
            "s",
            None,
            most=True,
            baselines=[each.slow for each in finishing],
        ),
        bounded(
            "collapse: where answers end at the relay, main decode behind",
            [_late(each.behind) for each in finishing],
            "part",
            BEHIND,
            most=False,
        ),
        bounded(
            "collapse: where answers end at the relay, its places taken",
            [_late(each.relay) for each in finishing],
            "part",
            TAKEN,
            most=False,
        ),
        bounded(
            "collapse: where answers end at the relay, requests for which it had no place",
            [each.turned_away for each in finishing],
            "part",
            TURNED_AWAY,
            most=False,
        ),
    ]


BEHIND = 0.1
"""Part of the sessions' tokens by which main decode's cache may be behind, once the burst is over."""

TAKEN = 0.5
"""Part of a relay's places from which on it is called overloaded, on average of that time."""

TURNED_AWAY = 0.1
"""Part of those that would gain by a relay and find no place, from the burst on, above which it is called
overloaded."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one process runs."""

    policy: str
    seed: int
    seconds: float


def run(job: Job) -> Course:
    """Calm, a burst of low hits as long, and three times as long calm again."""
    mesh = VirtualMesh(PLANS[job.policy], job.seed)
    placement = mesh.core.mesh.placement = Watched(mesh, ends=job.policy == FINISHING)
    if job.policy == FINISHING:
        mesh.sim.translate = nothing_parked
    traffic = Traffic(mesh, MIX, job.seed)
    traffic.warm(SESSIONS)
    traffic.poisson(2.0, 4.0, "before")
    mesh.run(6.0)
    course = Course()
    began, seconds = mesh.sim.now, job.seconds
    for length, new in ((seconds, MIX.new), (seconds, BURST), (3 * seconds, MIX.new)):
        traffic.mix = replace(MIX, new=new)
        traffic.poisson(RATE, length, "offered")
        for _ in range(int(length)):
            mesh.run(1.0)
            now = mesh.sim.now - began
            _look(mesh, traffic, now, course)
            course.given.append((now, placement.given))
            course.refused.append((now, placement.refused))
    mesh.drain()
    course.ttst = [(each.submitted - began, each.ttst) for each in done(mesh.clients)]
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


def _line(course: Course) -> str:
    behind, relay = _late(course.behind), _late(course.relay)
    late = f"main decode behind by {behind:.3f}, relay {relay:.2f} full, ttst p90 {course.slow:.2f} s"
    return f"{late}, no place for {course.turned_away:.2f}"


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
            panel("without", f"those that would gain by a relay and found no place, over {SPAN} s"),
        ],
    )
