"""Cases `handoff-step` and `interference`: intervals between tokens while something longer is computed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.command import say
from benchmarks.engine import plots
from benchmarks.engine.driver import Driver
from benchmarks.engine.options import Options
from benchmarks.engine.subjects import CONTEXT, runner_of, some_ids
from benchmarks.report import Result, bounded
from shared.engine.events import Extended, Sampled
from shared.engine.runner import TorchRunner
from shared.engine.sequence import Goal
from shared.policy.config import WorkerPolicy

BATCH = 8
CUT_TOKENS = 64
PROMPT = 2048
UNLIMITED = 1e9
STRETCHES = (1.25, 1.5, 1.75, 2.5, 4.0, UNLIMITED)
_BLOCKS = 640


def handoff_step(options: Options) -> list[Result]:
    """Eight sequences decode while extends of 64 tokens join, one after another."""
    default = WorkerPolicy()
    found = []
    runner = _runner(options)
    for stretch, most in ((default.extend_stretch, 2.0), (UNLIMITED, None)):
        driver = _decoding(runner, stretch)
        ratios = [_cut(driver, cut) for cut in range(options.pairs)]
        name = "handoff-step P99 / median" + ("" if most else ", extends never cut")
        say(f"{name}: {statistics.median(ratios):.2f}")
        found.append(bounded(name, ratios, "x", most, most=True, batch=BATCH, tokens=CUT_TOKENS))
    return found


def interference(options: Options) -> list[Result]:
    """Eight sequences decode while a prompt of 2,048 tokens is prefilled, by `extend_stretch`."""
    default = WorkerPolicy().extend_stretch
    runner = _runner(options)
    points: dict[float, tuple[float, float]] = {}
    found: list[Result] = []
    stretches = (default, UNLIMITED) if options.quick else STRETCHES
    for stretch in stretches:
        runs = options.pairs if stretch == default else 1
        ratios, waits = zip(*(_prefilled(_decoding(runner, stretch)) for _ in range(runs)), strict=True)
        points[stretch] = (statistics.median(ratios), statistics.median(waits))
        interval, wait = points[stretch]
        say(f"interference {stretch:g}: ITL P99 {interval:.2f} x idle, prefill {wait:.1f} s")
        name = f"interference stretch {stretch:g}" if stretch < UNLIMITED else "interference, never cut"
        most = 3.0 if stretch == default else None
        found.append(bounded(name, ratios, "x idle", most, most=True, prefill_s=round(points[stretch][1], 2)))
    target = options.out / "interference.png"
    plots.interference(target, points)
    say(f"plot: {target}")
    return found


def p99(values: Sequence[float]) -> float:
    """The least value that 99% do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def _runner(options: Options) -> TorchRunner:
    runner = runner_of(options, _BLOCKS)
    runner.warm_up()
    return runner


def _decoding(runner: TorchRunner, stretch: float) -> Driver:
    """A driver whose sequences are decoding, and whose pace has seen decodes alone."""
    policy = WorkerPolicy(extend_stretch=stretch)
    driver = Driver(runner, _BLOCKS, policy, runner.max_context)
    runner.close()  # what earlier drivers' sequences kept, under the same numbers
    for at in range(BATCH):
        driver.add(some_ids(CONTEXT, at), Goal.OWN)
    drawing: set[int] = set()
    while len(drawing) < BATCH:
        drawing |= {event.seq for event in driver.step() or () if isinstance(event, Sampled)}
    for _ in range(10):
        driver.step()
    return driver


def _cut(driver: Driver, cut: int) -> float:
    """P99 over median of the steps around one cut: as many of decodes alone as a cut every 4 s leaves."""
    known = some_ids(CONTEXT + CUT_TOKENS, 1000 + cut)
    held = driver.add(known[:CONTEXT], Goal.EXTEND)
    _until(driver, held)
    driver.clear()
    for _ in range(20):
        driver.step()
    idle = statistics.median(driver.seconds)
    driver.engine.feed(held, known[CONTEXT:])
    _until(driver, held)
    for _ in range(20):
        driver.step()
    driver.engine.end(held)
    return p99(driver.seconds) / idle


def _prefilled(driver: Driver) -> tuple[float, float]:
    """(P99 of the steps while a prompt is prefilled over the median before it, seconds that it took)."""
    driver.clear()
    for _ in range(20):
        driver.step()
    idle = statistics.median(driver.seconds)
    driver.clear()
    seq = driver.add(some_ids(PROMPT, 77), Goal.PREFILL)
    while not any(isinstance(event, Sampled) and event.seq == seq for event in driver.step() or ()):
        pass
    return p99(driver.seconds) / idle, sum(driver.seconds)


def _until(driver: Driver, seq: int) -> None:
    while not any(isinstance(event, Extended) and event.seq == seq for event in driver.step() or ()):
        pass
