"""Any schedule gives the same ids: chunks, batches, caching, eviction, starvation, parking, pauses and cuts.

A small worker plays at random: it admits, feeds, cuts, pauses, cancels, and parks the youngest where growth
starves. Every id drawn is compared with what its context demands, and the pool is checked after each step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.api import SamplingParams
from shared.engine.events import BlocksReady, EngineEvent, Extended, Fault, Finished, Sampled, Starved
from shared.engine.pace import LEAST
from shared.engine.sequence import Goal
from shared.engine.synthetic import synthetic_next, synthetic_run
from shared.errors import OutOfBlocks
from shared.policy.config import WorkerPolicy
from tests.support.engine_bench import BLOCK, VOCAB, Bench, of, prompt, sampling

LONGEST = 30


@dataclass
class Job:
    """One request as the worker sees it."""

    ids: list[int]
    prompt_len: int
    params: SamplingParams
    priority: int
    log: list[int]  # all ids that will ever be, where nobody interferes
    seq: int = 0
    goal: Goal = Goal.OWN
    ready: int = 0
    finished: str = ""
    paused: bool = False
    told: list[int] = field(default_factory=list)


class Worker:
    def __init__(self, blocks: int, policy: WorkerPolicy) -> None:
        self.bench = Bench(blocks, policy=policy)
        self.engine = self.bench.engine
        self.jobs: dict[int, Job] = {}
        self.parked: list[Job] = []
        self.done: list[Job] = []
        self.seen: Counter[str] = Counter()

    def act(self, random: Random) -> None:
        choices = [self.admit] * 3 + [self.step] * 10 + [self.cancel, self.feed, self.feed, self.cut]
        choices += [self.pause, self.resume, self.steal, self.readmit]
        random.choice(choices)(random)
        self.bench.pool.check()

    # --- what a worker does ---------------------------------------------------------------------------------

    def admit(self, random: Random) -> None:
        length = random.randint(1, LONGEST - 10)
        ids = prompt(length, random.randint(0, 2))
        if random.random() < 0.3:
            ids[-1] = 7  # a branch
        params = sampling(
            length + random.randint(1, 10),
            seed=random.randint(0, 1),
            temperature=random.choice([0.0, 1.0]),
            stop=range(0, VOCAB, 40),
        )
        log = ids + synthetic_run(ids, params, VOCAB, length)
        job = Job(list(ids), length, params, random.randint(0, 2), log)
        job.goal = random.choice([Goal.OWN, Goal.OWN, Goal.PREFILL, Goal.EXTEND])
        self.start(job, random)

    def start(self, job: Job, random: Random) -> None:
        spec = self.bench.spec(
            job.ids,
            job.goal,
            params=job.params,
            prompt_len=job.prompt_len,
            priority=job.priority,
            match=random.random() < 0.8,
            most=random.choice([None, None, 1]),
        )
        if self.bench.pool.available < 0:
            self.bench.pool.unpin(spec.blocks)
            return
        key = object()
        promised = min(random.randint(0, 3), self.bench.pool.available)
        if random.random() < 0.3:
            self.bench.pool.promise(key, promised)
            spec.promise = key
        try:
            job.seq = self.engine.add(spec, self.bench.now)
        except OutOfBlocks:
            self.seen["refused"] += 1
            self.bench.pool.unpin(spec.blocks)
            self.parked += [job] if job.told else []
        else:
            job.ready = len(spec.blocks)
            self.seen["hit"] += bool(spec.blocks)
            self.jobs[job.seq] = job
        # What is left of the promise is growth that is not guaranteed any more.
        self.bench.pool.unpromise(key)

    def step(self, random: Random) -> None:
        actions = [self.feed, self.cut, self.cancel, self.pause, self.admit]
        between = random.choice(actions) if random.random() < 0.3 else None
        events = self.bench.step(between=lambda: between(random) if between else None)
        self.take_all(events)

    def cancel(self, random: Random) -> None:
        if self.jobs and random.random() < 0.4:
            self.end(random.choice(list(self.jobs.values())))

    def end(self, job: Job) -> None:
        self.engine.end(job.seq)
        del self.jobs[job.seq]

    def feed(self, random: Random) -> None:
        """A standby gets more of the log."""
        standbys = [job for job in self.jobs.values() if job.goal is Goal.EXTEND]
        if standbys:
            job = random.choice(standbys)
            more = job.log[len(job.ids) : len(job.ids) + random.randint(0, 4)]
            self.engine.feed(job.seq, more)
            job.ids += more

    def cut(self, random: Random) -> None:
        """A standby, or a prefill that has drawn, becomes the owner; or an owner stands by again."""
        if not self.jobs:
            return
        job = random.choice(list(self.jobs.values()))
        if job.finished or (job.goal is Goal.PREFILL and not job.told):
            return
        job.goal = Goal.EXTEND if job.goal is Goal.OWN else Goal.OWN
        self.engine.set_goal(job.seq, job.goal)
        self.seen["cut"] += 1

    def pause(self, random: Random) -> None:
        if self.jobs:
            job = random.choice(list(self.jobs.values()))
            job.paused = True
            self.engine.pause(job.seq)

    def resume(self, random: Random) -> None:
        for job in self.jobs.values():
            job.paused = False
            self.engine.resume(job.seq)

    def steal(self, random: Random) -> None:
        """Somebody else takes all there is, for a moment: cached blocks are evicted and overwritten."""
        blocks = self.bench.pool.take(max(self.bench.pool.available, 0))
        for block in blocks:
            self.bench.runner.view(block)[:] = b"\xdd" * len(self.bench.runner.view(block))
        self.bench.pool.unpin(blocks)

    def readmit(self, random: Random) -> None:
        if self.parked:
            self.start(self.parked.pop(0), random)

    # --- what the engine says -------------------------------------------------------------------------------

    def take_all(self, events: list[EngineEvent] | None) -> None:
        known = set(self.jobs)
        for event in events or ():
            self.seen[type(event).__name__] += 1
            assert event.seq in known, f"{event} names a sequence that had ended before"
            if event.seq in self.jobs:
                self.take(event, self.jobs[event.seq])

    def take(self, event: EngineEvent, job: Job) -> None:
        assert not job.finished
        match event:
            case Sampled(position=position, id=id_):
                assert position == len(job.ids)
                assert id_ == synthetic_next(job.ids, job.params, VOCAB, job.prompt_len)
                assert id_ == job.log[position]
                job.ids.append(id_)
                job.told.append(id_)
            case Extended(upto=upto):
                assert upto <= len(job.ids)
                if job.goal is Goal.EXTEND:  # one made owner since then may have stepped back to draw
                    assert self.engine.computed(job.seq) >= upto - 1
            case BlocksReady(first=first, end=end):
                assert first == job.ready < end <= self.engine.computed(job.seq) // BLOCK
                job.ready = end
            case Finished(at=at, reason=reason):
                assert at == len(job.ids) == len(job.log)
                assert (reason == "stop") == (job.ids[-1] in job.params.stop_ids)
                job.finished = reason
                self.done.append(job)
                self.end(job)
            case Starved():
                self.relieve()
            case Fault():
                raise AssertionError(event)

    def relieve(self) -> None:
        """Park the youngest; the oldest is never parked."""
        youngest = max(self.jobs)
        if youngest != min(self.jobs):
            job = self.jobs[youngest]
            self.end(job)
            if job.goal is Goal.OWN:
                self.parked.append(job)

    def finish(self) -> None:
        """No more disturbance: everything that is left ends, and nothing is held afterwards."""
        random = Random(0)
        for _ in range(3000):
            self.resume(random)
            for job in list(self.jobs.values()):
                if job.goal is Goal.EXTEND or (job.goal is Goal.PREFILL and job.told):
                    job.goal = Goal.OWN
                    self.engine.set_goal(job.seq, Goal.OWN)
            events = self.bench.step()
            self.take_all(events)
            if events is None and self.parked:
                self.start(self.parked.pop(0), Random(1))
            elif events is None and not self.jobs:
                break
        else:
            raise AssertionError(f"stuck with {self.jobs}")
        pool = self.bench.pool
        assert (pool.pinned, pool.promised_total, pool.free + pool.cached) == (0, 0, pool.total)
        assert not self.engine.has_work


def play(blocks: int, policy: WorkerPolicy, seeds: list[int]) -> Worker:
    worker = Worker(blocks, policy)
    for seed in seeds:
        worker.act(Random(seed))
    worker.finish()
    return worker


POLICIES = st.builds(
    WorkerPolicy,
    max_running=st.integers(1, 6),
    token_budget=st.integers(1, 12),
    max_chunk_tokens=st.integers(1, 24),
)


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.integers(ceil(LONGEST / BLOCK) + 1, 30),
    policy=POLICIES,
    seeds=st.lists(st.integers(0, 2**24), min_size=40, max_size=100),
)
def test_any_schedule(blocks: int, policy: WorkerPolicy, seeds: list[int]) -> None:
    play(blocks, policy, seeds)


def test_every_case_is_met() -> None:
    seen: Counter[str] = Counter()
    for start in range(30):
        policy = WorkerPolicy(max_running=1 + start % 6, token_budget=8, max_chunk_tokens=16)
        seen += play(9 + start % 8, policy, list(range(start * 1000, start * 1000 + 100))).seen
    for case in ("Sampled", "Extended", "BlocksReady", "Finished", "Starved", "hit", "cut", "refused"):
        assert seen[case] > 10, seen


@pytest.mark.parametrize("damage", ["flip", "zero", "foreign"])
def test_a_wrong_block_would_be_seen(damage: str) -> None:
    """The property can fail: a published block that is spoiled changes the ids of those that use it."""
    bench = Bench()
    first = bench.add(prompt(9), Goal.EXTEND)
    bench.run()
    bench.engine.end(first)
    block = bench.spec(prompt(9)).blocks[1]
    view = bench.runner.view(block)
    if damage == "flip":
        view[len(view) - 1] ^= 1
    elif damage == "zero":
        view[:] = bytes(len(view))
    else:
        view[:] = bytes(bench.runner.view(bench.spec(prompt(9)).blocks[0]))
    bench.add(prompt(9), more=8)
    made = [event.id for event in of(bench.run(), Sampled)]
    assert made != synthetic_run(prompt(9), sampling(17), VOCAB, 9)


# --- packed tails -------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=12),
    hits=st.integers(0, 20),
    budget=st.integers(1, 64),
)
def test_prompts_packed_together_take_no_step_too_many(lengths: list[int], hits: int, budget: int) -> None:
    """The bathtub: steps <= ceil(uncached tokens / budget) + 1, whatever is cached of each prompt."""
    policy = WorkerPolicy(max_running=len(lengths), max_chunk_tokens=budget, token_budget=budget)
    bench = Bench(320, policy=policy)
    for salt, length in enumerate(lengths if hits else ()):
        seq = bench.add(prompt(length, salt)[: hits * BLOCK + 1], Goal.EXTEND)
        bench.run()
        bench.engine.end(seq)
    bench.run()
    before = len([plan for plan in bench.plans if plan.items])
    uncached = 0
    for salt, length in enumerate(lengths):
        spec = bench.spec(prompt(length, salt), Goal.PREFILL, most=(length - 1) // BLOCK)
        uncached += length - BLOCK * len(spec.blocks)
        bench.engine.add(spec, bench.now)
    events = bench.run()
    steps = [plan for plan in bench.plans if plan.items][before:]
    assert len(of(events, Sampled)) == len(lengths)
    assert len(steps) <= ceil(uncached / budget) + 1
    assert all(sum(len(item.ids) for item in plan.items) <= budget for plan in steps)


@settings(max_examples=30, deadline=None)
@given(
    owners=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    budget=st.integers(1, 24),
)
def test_the_budget_holds_while_others_decode(owners: int, lengths: list[int], budget: int) -> None:
    policy = WorkerPolicy(max_chunk_tokens=64, token_budget=budget)
    bench = Bench(500, policy=policy)
    decoding = [bench.add(prompt(3, 50 + n), more=400) for n in range(owners)]
    for _ in range(100):
        if len(of(bench.step(), Sampled)) == owners:
            break
    for salt, length in enumerate(lengths):
        bench.add(prompt(length, salt), Goal.PREFILL)
    waiting = set(range(owners + 1, owners + 1 + len(lengths)))
    for _ in range(sum(lengths)):
        events = bench.step()
        items = bench.plans[-1].items
        assert [item.seq for item in items[:owners]] == decoding  # each of them, in each step
        extended = sum(len(item.ids) for item in items[owners:])
        assert extended + owners <= max(budget, owners + min(LEAST, budget))
        waiting -= {event.seq for event in of(events, Sampled)}
        if not waiting:
            break
    assert not waiting
