"""Case `extend`: what n new tokens cost at context 2,048, beside what their products and bytes must cost."""

from __future__ import annotations

import statistics

from benchmarks.command import say
from benchmarks.engine import plots
from benchmarks.engine.bounds import measure
from benchmarks.engine.options import Options
from benchmarks.engine.subjects import LONG_CONTEXT, EngineSubject
from benchmarks.report import Result, bounded
from shared.engine.model_config import read_config

COUNTS = tuple(1 << power for power in range(10))
ATTENTION_BANDWIDTH = 8e9
"""Bytes/s at which the context's KV is taken to be read."""
MOST_OVER_BOUND = 1.6
MOST_OVER_ONE = 3.0


def extend(options: Options) -> list[Result]:
    """Both dtypes; the musts are those of 64 new tokens."""
    found: list[Result] = []
    for dtype in ("bfloat16", "float32"):
        found += _curve(options, dtype)
    return found


def _curve(options: Options, dtype: str) -> list[Result]:
    subject = EngineSubject(options.directory, dtype, options.threads, library=options.library)
    bounds = measure(read_config(options.directory), dtype, options.threads)
    subject.start(1, LONG_CONTEXT)
    counts = (1, 8, 64) if options.quick else COUNTS
    taken: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(options.pairs + 1):
        for count in counts:
            taken[count].append(subject.extend(count))
            subject.back(count)
    taken = {count: values[1:] for count, values in taken.items()}  # the first warms up
    products = {count: bounds.products(count, 1) for count in counts}
    attention = bounds.kv_bytes(LONG_CONTEXT) / ATTENTION_BANDWIDTH
    medians = {count: statistics.median(values) for count, values in taken.items()}
    for count in counts:
        say(f"extend {dtype} {count}: {1e3 * medians[count]:.1f} ms; products {1e3 * products[count]:.1f} ms")
    target = options.out / f"extend-{dtype}.png"
    plots.curve(target, f"Extend at context {LONG_CONTEXT}, {dtype}", medians, products, attention)
    say(f"plot: {target}")
    limit = MOST_OVER_BOUND * products[64] + attention
    over_bound = [seconds / limit for seconds in taken[64]]
    over_one = [long / one for long, one in zip(taken[64], taken[1], strict=True)]
    most = MOST_OVER_ONE if dtype == "bfloat16" else None
    case = f"extend/{dtype}"
    curve = {str(count): round(1e3 * seconds, 2) for count, seconds in medians.items()}
    return [
        bounded(f"{case} time(64) / limit", over_bound, "x", 1.0, most=True, limit_ms=round(1e3 * limit, 1)),
        bounded(f"{case} time(64) / time(1)", over_one, "x", most, most=True, milliseconds=curve),
    ]
