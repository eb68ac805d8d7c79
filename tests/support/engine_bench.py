"""An engine with a pool and the synthetic runner, stepped by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from shared.engine.api import SamplingParams, StepPlan
from shared.engine.engine import Engine
from shared.engine.events import EngineEvent
from shared.engine.sequence import Goal, SequenceSpec
from shared.engine.synthetic import SyntheticRunner, SyntheticTiming, synthetic_layout
from shared.kv.hashing import chain_hashes, chain_root
from shared.kv.pool import BlockPool
from shared.policy.config import WorkerPolicy

BLOCK = 4
VOCAB = 211
ROOT = chain_root("synthetic", b"layout", b"")

Event = TypeVar("Event", bound=EngineEvent)


def sampling(
    max_pos: int, *, seed: int = 1, temperature: float = 1.0, stop: Sequence[int] = ()
) -> SamplingParams:
    return SamplingParams(max_pos=max_pos, seed=seed, temperature=temperature, stop_ids=tuple(stop))


def prompt(length: int, salt: int = 0) -> list[int]:
    """Ids that differ between salts from the first one on."""
    return [(7 * index + 31 * salt + 1) % VOCAB for index in range(length)]


class Bench:
    """Runs steps in virtual time and checks the pool after each of them."""

    def __init__(
        self, blocks: int = 64, *, policy: WorkerPolicy | None = None, max_context: int = 4096
    ) -> None:
        self.pool = BlockPool(blocks)
        self.policy = policy or WorkerPolicy()
        timing = SyntheticTiming(step=0.01, token=0.001)
        self.runner = SyntheticRunner(synthetic_layout(BLOCK, 32), blocks, vocab=VOCAB, timing=timing)
        self.engine = Engine(self.pool, block_tokens=BLOCK, policy=self.policy, max_context=max_context)
        self.now = 0.0
        self.plans: list[StepPlan] = []

    def spec(
        self,
        ids: Sequence[int],
        goal: Goal = Goal.OWN,
        *,
        more: int = 8,
        params: SamplingParams | None = None,
        prompt_len: int | None = None,
        priority: int = 0,
        match: bool = True,
        most: int | None = None,
    ) -> SequenceSpec:
        """What a worker hands over: the match (at most `most` blocks), pinned."""
        hashes = chain_hashes(ROOT, ids, BLOCK)
        blocks = self.pool.match(hashes[:most]) if match else []
        self.pool.pin(blocks)
        return SequenceSpec(
            ids=list(ids),
            prompt_len=len(ids) if prompt_len is None else prompt_len,
            params=params or sampling(len(ids) + more),
            root=ROOT,
            hashes=hashes,
            blocks=blocks,
            goal=goal,
            priority=priority,
        )

    def add(self, ids: Sequence[int], goal: Goal = Goal.OWN, **how: object) -> int:
        return self.engine.add(self.spec(ids, goal, **how), self.now)  # type: ignore[arg-type]

    def step(self, between: Callable[[], None] | None = None) -> list[EngineEvent] | None:
        """One step; `between` happens while it runs. None: there was nothing to do."""
        plan = self.engine.plan(self.now)
        self.pool.check()
        if plan is None:
            return None
        self.plans.append(plan)
        result = self.runner.execute(plan)
        self.now += result.seconds
        if between is not None:
            between()
        events = self.engine.apply(self.now, plan, result)
        self.pool.check()
        return events

    def run(self, most: int = 1000) -> list[EngineEvent]:
        """Steps until there is nothing to do."""
        events: list[EngineEvent] = []
        for _ in range(most):
            more = self.step()
            if more is None:
                return events
            events += more
        raise AssertionError(f"still busy after {most} steps")

    def idle(self) -> bool:
        """Nothing is held any more."""
        return self.pool.pinned == 0 and self.pool.promised_total == 0


def fill(bench: Bench, ids: list[int]) -> None:
    """Leave the full blocks of `ids` cached."""
    seq = bench.add([*ids, 1], Goal.EXTEND)
    bench.run()
    bench.engine.end(seq)
    bench.run()


def of(events: Sequence[EngineEvent] | None, kind: type[Event], seq: int | None = None) -> list[Event]:
    """The events of one kind (and sequence), in order."""
    return [event for event in events or () if isinstance(event, kind) and (seq is None or event.seq == seq)]
