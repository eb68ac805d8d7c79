"""Workers under arbitrary orders of everything: I1 to I3, I5 and I6 after each event, and nothing left at
the end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.nodes import Line, Node
from benchmarks.simulation.sim import Sim
from shared.engine.api import StepPlan, StepResult, step_failed
from shared.engine.synthetic import SyntheticTiming, synthetic_run
from shared.errors import NanLogits
from shared.policy.config import WorkerPolicy
from shared.wire import messages as m
from shared.worker.asked import params_of
from tests.support.mesh import VOCAB, WorkerNode, worker_node
from tests.support.wild_router import WildRouter

FAULTS = ("cut", "kill", "lose", "damage", "flush", "engine", "drain")
PIPELINES = ("MD", "P-MD", "P-RLD-MD", "P-RLD")


class World:
    """A random mesh and its load, from one seed."""

    def __init__(
        self, seed: int, *, blocks: int, requests: int, faults: Sequence[str], retries: int = 0
    ) -> None:
        self.rng = random.Random(seed)
        self.sim = Sim(seed, chunk=self.rng.choice((64, 100, 256, 4096)), after=self.check)
        rates = {True: self.rng.choice((0.0, 1e6)), False: self.rng.choice((5e3, 2e4, 1e5, 0.0))}
        linger = self.rng.choice((0.0, 0.0, 0.03))
        lines = {same: Line(rate, 0.002, 0.004, linger) for same, rate in rates.items()}
        self.sim.line_between = lambda a, b: lines[a.datacenter == b.datacenter]
        self.faults = faults
        self.workers: dict[str, WorkerNode] = {}
        nodes: dict[m.Role, list[str]] = {
            m.Role.PREFILL: ["p1", "p2"],
            m.Role.RELAY: ["rld"],
            m.Role.MAIN: ["md1", "md2"] if self.rng.random() < 0.5 else ["md1"],
        }
        self.roles = {name: role for role, names in nodes.items() for name in names}
        self.blocks = blocks
        for name in self.roles:
            self.boot(name)
        self.router = WildRouter(self.rng, 77, self.later, nodes, retries=retries)
        self.node = self.sim.add(Node("r", m.Role.ROUTER, self.router, 77))
        self.sim.connect_all()
        self.bases = [[self.rng.randrange(VOCAB) for _ in range(60)] for _ in range(3)]
        spread = self.rng.choice((0.05, 0.5, 2.0))
        for _ in range(requests):
            self.sim.at(self.rng.random() * spread, self.begin)
            self.sim.at(self.rng.random() * spread * 2, lambda: self.sim.call(self.node, self.router.stir))
        self.sim.at(spread / 2, lambda: self.sim.call(self.node, lambda: self.router.warm(self.bases[0])))
        if faults:
            for _ in range(self.rng.randint(1, 8)):
                self.sim.at(self.rng.random() * spread * 1.5, self.harm)

    def boot(self, name: str) -> None:
        policy = WorkerPolicy(
            max_running=8,
            max_queued=16,
            token_budget=16,
            max_chunk_tokens=24,
            growth_tokens=8,
            local_tokens=16,
            report_every=20.0,
        )
        node = worker_node(
            name,
            self.roles[name],
            blocks=self.blocks,
            policy=policy,
            seed=self.sim.random.randrange(1 << 30),
            datacenter="b" if name.startswith("md") else "a",
            timing=SyntheticTiming(step=0.003, token=0.0003),
        )
        self.workers[name] = node
        self.sim.add(node)

    def later(self, seconds: float, act: object) -> None:
        self.sim.at(self.sim.now + seconds, lambda: self.sim.call(self.node, act))  # type: ignore[arg-type]

    def begin(self) -> None:
        base = self.rng.choice(self.bases)
        ids = base[: self.rng.randint(1, len(base))]
        if self.rng.random() < 0.3:
            ids = ids + [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 20))]
        sampling = m.Sampling(
            max_pos=len(ids) + self.rng.choice((1, 2, 3, 8, 30, 80)),
            seed=self.rng.getrandbits(32),
            temperature=self.rng.choice((0.0, 1.0)),
            stop_ids=tuple(self.rng.sample(range(VOCAB), self.rng.choice((0, 0, 5, 100)))),
            logprobs=self.rng.choice((-1, 0, 2)),
        )
        pipeline = self.rng.choice(PIPELINES)
        rid = self.sim.call(self.node, lambda: self.router.start(ids, sampling, pipeline))
        if self.rng.random() < 0.25:
            self.later(self.rng.random() * 1.5, lambda: self.router.end(self.router.wishes[rid], "cancelled"))
        self.later(90, lambda: self.router.end(self.router.wishes[rid], "deadline"))

    def harm(self) -> None:
        names = sorted(self.workers)
        kind = self.rng.choice(self.faults)
        if kind == "engine":
            self.sim.tamper = self.spoil
            self.sim.at(self.sim.now + 0.05, self.mend)
            return
        if kind == "drain":
            name = self.rng.choice(names)
            self.sim.call(self.node, lambda: self.router._send(name, m.Drain(True)))
            self.later(0.2, lambda: self.router._send(name, m.Drain(False)))
            return
        if kind == "kill":
            name = self.rng.choice(names)
            if self.sim.nodes[name].alive:
                self.sim.kill(name)
                self.sim.at(self.sim.now + self.rng.random(), lambda: self.revive(name))
            return
        if kind == "damage":
            self.sim.damage = lambda chunk, data: self.flip(data)
            self.sim.at(self.sim.now + 0.2, self.mend)
            return
        if kind == "flush":
            self.sim.call(self.node, lambda: self.router._send(self.rng.choice(names), m.Flush()))
            return
        a, b = self.rng.sample(names if kind == "lose" else [*names, "r"], 2)
        busy = [
            (n.name, t.target) for n in self.workers.values() if n.alive for t in n.worker.rooms.kv_out.all()
        ]
        if busy and self.rng.random() < 0.7:
            a, b = self.rng.choice(busy)
        if kind == "cut":
            self.sim.cut(a, b)
            self.sim.at(self.sim.now + self.rng.choice((0.01, 0.3, 5.0)), lambda: self.sim.heal(a, b))
        else:
            self.sim.lose(a, b)
            self.sim.at(self.sim.now + 0.2, self.sim.connect_all)

    def flip(self, data: bytearray) -> None:
        if self.rng.random() < 0.1:
            data[self.rng.randrange(len(data))] ^= 1

    def mend(self) -> None:
        self.sim.damage = lambda chunk, data: None
        self.sim.tamper = lambda node, plan, result: result

    def spoil(self, node: Node, plan: StepPlan, result: StepResult) -> StepResult:
        """A forward that raises as a whole, or the scores of one sequence are no numbers."""
        if self.rng.random() < 0.1:
            return step_failed(plan, RuntimeError("the forward raised"), result.seconds)
        drawn = [NanLogits("no scores") if self.rng.random() < 0.1 else one for one in result.drawn]
        return StepResult(tuple(drawn), result.seconds)

    def revive(self, name: str) -> None:
        self.boot(name)
        self.sim.connect_all()

    def check(self, node: Node) -> None:
        if isinstance(node, WorkerNode):
            node.worker.check()
        assert not self.router.faults

    def prefixes(self) -> None:
        """I1: what a standby knows is a prefix of the log."""
        for node in self.workers.values():
            for part in node.worker.rooms.decoding.all():
                wish = self.router.wishes[part.rid]
                if not part.owns and wish.ended is None and node.alive:
                    known = part.known.ids
                    assert wish.log[: len(known)] == known

    def check_all(self, node: Node) -> None:
        self.check(node)
        self.prefixes()

    def play(self) -> None:
        """Until all requests have ended; then until nothing may be held any more."""
        self.sim.run(100.0)
        wishes = self.router.wishes.values()
        for wish in wishes:
            if wish.ended == "finished":
                made = synthetic_run(
                    wish.log[: wish.prompt_len], params_of(wish.sampling), VOCAB, wish.prompt_len
                )
                assert wish.log[wish.prompt_len :] == made
        self.sim.run(400.0)
        for node in self.workers.values():
            if node.alive:
                assert node.worker.idle(), (node.name, node.worker.counts())


@given(seed=st.integers(0, 1 << 32), requests=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_every_request_ends_right_without_faults(seed: int, requests: int) -> None:
    world = World(seed, blocks=200, requests=requests, faults=())
    world.play()
    for wish in world.router.wishes.values():
        assert wish.ended in ("finished", "cancelled")
    assert not any(w.worker.counters.get("chunks_damaged_total") for w in world.workers.values())


@given(seed=st.integers(0, 1 << 32), requests=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_cut_lines_and_damaged_bytes_only_cost_time(seed: int, requests: int) -> None:
    world = World(seed, blocks=200, requests=requests, faults=("cut", "damage", "flush"))
    world.play()
    for wish in world.router.wishes.values():
        assert wish.ended in ("finished", "cancelled")


@given(seed=st.integers(0, 1 << 32), blocks=st.integers(24, 60), requests=st.integers(2, 10))
@settings(max_examples=40, deadline=None)
def test_nothing_is_left_where_blocks_are_scarce(seed: int, blocks: int, requests: int) -> None:
    World(seed, blocks=blocks, requests=requests, faults=(), retries=3).play()


@given(seed=st.integers(0, 1 << 32), blocks=st.sampled_from((40, 100, 200)), requests=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_nothing_is_left_after_faults(seed: int, blocks: int, requests: int) -> None:
    World(seed, blocks=blocks, requests=requests, faults=FAULTS, retries=4).play()


@pytest.mark.parametrize("seed", range(5))
def test_standbys_know_a_prefix_of_the_log(seed: int) -> None:
    world = World(seed, blocks=100, requests=8, faults=FAULTS, retries=4)
    world.sim.after = world.check_all
    world.play()
