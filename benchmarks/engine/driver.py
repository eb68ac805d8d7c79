"""An engine over a real runner, stepped here: what a worker does between its messages."""

from __future__ import annotations

import time
from collections.abc import Sequence

from shared.engine.api import Runner, SamplingParams
from shared.engine.engine import Engine
from shared.engine.events import EngineEvent
from shared.engine.sequence import Goal, SequenceSpec
from shared.kv.hashing import chain_hashes
from shared.kv.pool import BlockPool
from shared.policy.config import WorkerPolicy

_ROOT = b"r" * 16


class Driver:
    """`seconds` of each step with work, and `steps` (items' new tokens), since `clear`."""

    def __init__(self, runner: Runner, blocks: int, policy: WorkerPolicy, max_context: int) -> None:
        self._runner = runner
        self._block_tokens = runner.layout.block_tokens
        self._pool = BlockPool(blocks)
        self.engine = Engine(
            self._pool, block_tokens=self._block_tokens, policy=policy, max_context=max_context
        )
        self.seconds: list[float] = []
        self.steps: list[tuple[int, ...]] = []

    def clear(self) -> None:
        """Forget what was measured."""
        self.seconds.clear()
        self.steps.clear()

    def add(self, ids: Sequence[int], goal: Goal, *, cached: int = 1 << 30, more: int = 1 << 20) -> int:
        """A sequence that finds at most its first `cached` tokens in the pool, and draws up to `more`."""
        hashes = chain_hashes(_ROOT, ids, self._block_tokens)
        usable = (len(ids) - (goal is not Goal.EXTEND)) // self._block_tokens
        held = self._pool.match(hashes[: min(usable, cached // self._block_tokens)])
        self._pool.pin(held)
        params = SamplingParams(max_pos=len(ids) + more, seed=0, temperature=0.0)
        spec = SequenceSpec(list(ids), len(ids), params, _ROOT, hashes, held, goal)
        return self.engine.add(spec, time.monotonic())

    def step(self) -> list[EngineEvent] | None:
        """One step; None where there was nothing to do. Raises what an item failed with."""
        plan = self.engine.plan(time.monotonic())
        if plan is None:
            return None
        began = time.perf_counter()
        result = self._runner.execute(plan)
        events = self.engine.apply(time.monotonic(), plan, result)
        if plan.items:
            self.seconds.append(time.perf_counter() - began)
            self.steps.append(tuple(len(item.ids) for item in plan.items))
        for outcome in result.drawn:
            if isinstance(outcome, Exception):
                raise outcome
        return events
