"""Case `bathtub`: prompts of which part is cached. Steps are counted without a clock, then packed steps are
timed beside steps of one prompt each.
"""

from __future__ import annotations

import math
import statistics

from benchmarks.command import say
from benchmarks.engine import plots
from benchmarks.engine.driver import Driver
from benchmarks.engine.options import Options
from benchmarks.engine.subjects import BLOCK_TOKENS, runner_of, some_ids
from benchmarks.report import Result, bounded, paired
from shared.engine.api import Runner
from shared.engine.events import Sampled
from shared.engine.runner import TorchRunner
from shared.engine.sequence import Goal
from shared.engine.synthetic import SyntheticRunner, SyntheticTiming, synthetic_layout
from shared.policy.config import WorkerPolicy

PROMPTS = 16
LENGTH = 2048
CHUNK = 512
HITS = (0, 20, 40, 45, 50, 70, 75, 80, 90, 95)
TIMED = (45, 70)
BILLED = (0.10, 0.25)
"""What a cached token is billed at, beside an uncached one."""


def bathtub(options: Options) -> list[Result]:
    """Exact step counts at every hit rate, then speed with the real model."""
    found = [_counted(hit) for hit in HITS]
    prompts = PROMPTS if options.full else 3
    blocks = prompts * 2 * (LENGTH // BLOCK_TOKENS + 2)
    runner = runner_of(options, blocks)
    for hit in TIMED[:1] if options.quick else TIMED:
        packed, alone = [], []
        for _ in range(options.pairs):
            packed.append(_rate(runner, blocks, prompts, hit, CHUNK, together=True))
            alone.append(_rate(runner, blocks, prompts, hit, CHUNK, together=False))
        shown = f"packed {statistics.median(packed):.0f} tok/s, alone {statistics.median(alone):.0f}"
        say(f"bathtub {hit}%: {shown}")
        found.append(paired(f"bathtub/{hit}% packed vs one by one", packed, alone, "tok/s", 1.05))
    if not options.quick:
        rates = {hit: _rate(runner, blocks, prompts, hit, CHUNK, together=True) for hit in HITS}
        target = options.out / "bathtub.png"
        plots.bathtub(target, rates, BILLED)
        say(f"plot: {target}")
    return found


def _counted(hit: int) -> Result:
    runner = SyntheticRunner(
        synthetic_layout(BLOCK_TOKENS, 64), 4096, vocab=49152, timing=SyntheticTiming(0.0, 0.0)
    )
    driver = _filled(runner, 4096, PROMPTS, hit, together=True)
    uncached = sum(map(sum, driver.steps))
    limit = math.ceil(uncached / CHUNK) + 1
    return bounded(
        f"bathtub/{hit}% steps / limit",
        [len(driver.steps) / limit],
        "x",
        1.0,
        most=True,
        steps=len(driver.steps),
    )


def _rate(runner: TorchRunner, blocks: int, prompts: int, hit: int, chunk: int, *, together: bool) -> float:
    """Uncached tokens/s."""
    driver = _filled(runner, blocks, prompts, hit, together=together, chunk=chunk)
    return sum(map(sum, driver.steps)) / sum(driver.seconds)


def _filled(
    runner: Runner, blocks: int, prompts: int, hit: int, *, together: bool, chunk: int = CHUNK
) -> Driver:
    """All prompts computed, after their first `hit` percent were; counted from there."""
    runner.close()  # a new engine numbers its sequences from 1 again
    policy = WorkerPolicy(max_chunk_tokens=chunk, token_budget=chunk, max_running=prompts if together else 1)
    driver = Driver(runner, blocks, policy, 8192)
    texts = [some_ids(LENGTH, 5000 + at) for at in range(prompts)]
    cached = LENGTH * hit // 100 // BLOCK_TOKENS * BLOCK_TOKENS
    if cached:
        _computed(driver, [text[:cached] for text in texts], Goal.EXTEND)
    driver.clear()
    _computed(driver, texts, Goal.PREFILL)
    return driver


def _computed(driver: Driver, texts: list[list[int]], goal: Goal) -> None:
    live = [driver.add(text, goal) for text in texts]
    drawn = 0
    while True:
        events = driver.step()
        drawn += sum(isinstance(event, Sampled) for event in events or ())
        if events is None or (goal is Goal.PREFILL and drawn == len(live)):
            break
    for seq in live:
        driver.engine.end(seq)
    driver.step()
