"""Runs an engine: plans and results in the loop's thread, steps in one thread of their own.

One of the two supervisors: a step that raises fails its items, never the process, unless the device itself is
lost. Knows no requests and no messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from shared.engine.api import Runner, StepPlan, StepResult, step_failed
from shared.engine.engine import Engine
from shared.engine.events import EngineEvent
from shared.errors import DeviceLost


class EngineLoop:
    """`on_events` gets (now, events) after each step, in the loop's thread, with no step running."""

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        on_events: Callable[[float, Sequence[EngineEvent]], None],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._on_events = on_events
        self._clock = clock
        self._wanted = asyncio.Event()
        self._stopping = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._log = structlog.get_logger()
        self.last_step_at = clock()
        """When a step last ended, or there was nothing to compute; for the watchdog."""
        self.step_since: float | None = None
        """When the running step began; None: none runs."""

    def wake(self) -> None:
        """There may be work: call it, in the loop's thread, after anything that may have given the engine
        some.
        """
        self._wanted.set()

    def stop(self) -> None:
        """End `run` after the running step."""
        self._stopping = True
        self._wanted.set()

    async def warm_up(self) -> None:
        """Run the runner's warm-up in the engine thread, before `run`."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._runner.warm_up)

    async def run(self) -> None:
        """Step while there is work, else wait for `wake`. Returns after `stop`; the runner is then closed."""
        try:
            while not self._stopping:
                plan = self._engine.plan(self._clock())
                if plan is None:
                    self.last_step_at = self._clock()
                    self._wanted.clear()
                    await self._wanted.wait()
                else:
                    await self._step(plan)
        finally:
            # Where `run` is cancelled the thread may still be in a step; this waits for it.
            await asyncio.shield(self._close())

    async def _step(self, plan: StepPlan) -> None:
        self.step_since = self._clock()
        result = await asyncio.get_running_loop().run_in_executor(self._thread, self._execute, plan)
        now = self._clock()
        self.step_since = None
        self.last_step_at = now
        self._on_events(now, self._engine.apply(now, plan, result))

    def _execute(self, plan: StepPlan) -> StepResult:
        began = self._clock()
        try:
            return self._runner.execute(plan)
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - supervisor: the step's items fail, the process goes on
            self._log.exception("engine step failed", items=len(plan.items))
            return step_failed(plan, error, self._clock() - began)

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._runner.close)
        self._thread.shutdown(wait=True)
