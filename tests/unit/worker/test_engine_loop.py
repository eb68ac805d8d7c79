"""The engine thread: steps while there is work, survives a forward that raises, ends cleanly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from shared.engine.api import SamplingParams, StepPlan, StepResult
from shared.engine.engine import Engine
from shared.engine.events import EngineEvent, Fault, Finished, Sampled
from shared.engine.sequence import Goal, SequenceSpec
from shared.engine.synthetic import SyntheticRunner, synthetic_run
from shared.kv.pool import BlockPool
from shared.policy.config import WorkerPolicy
from shared.worker.engine_loop import EngineLoop
from tests.support.mesh import BLOCK_TOKENS, LAYOUT, VOCAB, root


class Watched(SyntheticRunner):
    """Notes where it runs; `hook` may raise or wait."""

    def __init__(self) -> None:
        super().__init__(LAYOUT, 64, vocab=VOCAB)
        self.threads: set[str] = set()
        self.closed = self.warm = False
        self.hook: Callable[[StepPlan], None] = lambda plan: None

    def execute(self, plan: StepPlan) -> StepResult:
        self.threads.add(threading.current_thread().name)
        self.hook(plan)
        return super().execute(plan)

    def warm_up(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.warm = True

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed = True


class Rig:
    """An engine, its loop, and what came out."""

    def __init__(self) -> None:
        self.pool = BlockPool(64)
        self.engine = Engine(self.pool, block_tokens=BLOCK_TOKENS, policy=WorkerPolicy(), max_context=500)
        self.runner = Watched()
        self.events: list[EngineEvent] = []
        self.happened = asyncio.Event()
        self.loop = EngineLoop(self.engine, self.runner, self.take, time.monotonic)

    def take(self, now: float, events: Sequence[EngineEvent]) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.events += events
        self.happened.set()

    def add(self, ids: list[int], tokens: int) -> int:
        params = SamplingParams(max_pos=len(ids) + tokens, seed=0, temperature=0.0)
        spec = SequenceSpec(ids, len(ids), params, root(b""), [], [], Goal.OWN)
        seq = self.engine.add(spec, time.monotonic())
        self.loop.wake()
        return seq

    async def until(self, kind: type[EngineEvent], seq: int) -> None:
        async with asyncio.timeout(5):
            while not any(isinstance(event, kind) and event.seq == seq for event in self.events):
                self.happened.clear()
                await self.happened.wait()

    def ids(self, seq: int) -> list[int]:
        return [event.id for event in self.events if isinstance(event, Sampled) and event.seq == seq]


@asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.loop.warm_up()
    task = asyncio.create_task(rig.loop.run())
    try:
        yield rig
    finally:
        rig.loop.stop()
        async with asyncio.timeout(5):
            await task
        assert rig.runner.closed
        assert rig.runner.threads == {"engine_0"}, "everything ran in the one thread"


async def test_steps_while_there_is_work_and_waits_for_more() -> None:
    async with running() as rig:
        assert rig.runner.warm
        first = rig.add([1, 2, 3], 10)
        await rig.until(Finished, first)
        params = SamplingParams(max_pos=13, seed=0, temperature=0.0)
        assert rig.ids(first) == synthetic_run([1, 2, 3], params, VOCAB, 3)
        second = rig.add([4, 5], 3)
        await rig.until(Finished, second)
        assert rig.loop.step_since is None


async def test_a_forward_that_raises_fails_its_items_only() -> None:
    async with running() as rig:

        def broken(plan: StepPlan) -> None:
            if plan.items:
                raise RuntimeError("layer 3")

        rig.runner.hook = broken
        first = rig.add([1, 2, 3], 10)
        await rig.until(Fault, first)
        (fault,) = [event for event in rig.events if isinstance(event, Fault)]
        assert "layer 3" in fault.detail
        rig.engine.end(first)
        rig.runner.hook = lambda plan: None
        second = rig.add([4, 5], 3)
        await rig.until(Finished, second)
        rig.engine.end(second)
        assert rig.pool.pinned == 0


async def test_the_watchdog_sees_a_step_that_hangs() -> None:
    async with running() as rig:
        entered, leave = threading.Event(), threading.Event()

        def hang(plan: StepPlan) -> None:
            entered.set()
            leave.wait(5)

        rig.runner.hook = hang
        seq = rig.add([1, 2, 3], 1)
        await asyncio.to_thread(entered.wait, 5)
        assert rig.loop.step_since is not None
        before = rig.loop.last_step_at
        leave.set()
        await rig.until(Finished, seq)
        assert rig.loop.last_step_at > before


async def test_cancelled_in_a_step_it_waits_for_the_thread() -> None:
    rig = Rig()
    entered, leave = threading.Event(), threading.Event()

    def hang(plan: StepPlan) -> None:
        entered.set()
        leave.wait(5)

    rig.runner.hook = hang
    task = asyncio.create_task(rig.loop.run())
    rig.add([1, 2, 3], 1)
    await asyncio.to_thread(entered.wait, 5)
    task.cancel()
    await asyncio.sleep(0)
    assert not rig.runner.closed
    leave.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert rig.runner.closed
