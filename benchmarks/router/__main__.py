"""Benchmarks of the router: `python -m benchmarks.router [CASE ...] [--quick]`.

`overhead`: the router as its own process on one core, workers that answer at once, a client on another core.
`retokenisation`: conversations with the development model, sampled at temperature 1. Each case measures its
baseline in the same run. Progress goes to stderr, a table and at last JSON lines to stdout.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from benchmarks.command import chosen, command, run, say
from benchmarks.report import Result
from benchmarks.router import overhead, retokenisation
from benchmarks.router.overhead import Size
from benchmarks.router.plots import plot_latency
from benchmarks.router.rig import rig
from benchmarks.router.texts import Texts
from scripts.model_cache import model_dir
from services.router.front.tokens import load_tokenizer

T = TypeVar("T")
Case = Callable[[argparse.Namespace], list[Result]]


def overhead_case(options: argparse.Namespace) -> list[Result]:
    """Added time to first token, and the most that one core carries."""
    size = Size(runs=1, seconds=1.0, conversations=2, streams=32) if options.quick else Size()

    async def measured() -> list[Result]:
        model = model_dir(thorough=False)
        texts = Texts(load_tokenizer(model), 1)
        with tempfile.TemporaryDirectory() as directory:
            async with rig(model, Path(directory), texts.answer, options.core) as ready:
                results, seen = await overhead.latency(ready, texts, size, say)
                results += await overhead.capacity(ready, texts, size, say)
        target = options.out / "router-ttft.png"
        say(f"plot: {target}" if plot_latency(seen, target) else "no plot: matplotlib is not installed")
        return results

    return _run(measured())


def retokenisation_case(options: argparse.Namespace) -> list[Result]:
    """Second turns after answers sampled at temperature 1."""
    return _run(retokenisation.measure(2 if options.quick else 8, say))


CASES: dict[str, Case] = {"overhead": overhead_case, "retokenisation": retokenisation_case}


def _run(main: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(main)


def arguments() -> argparse.ArgumentParser:
    parser = command("router", __doc__, CASES)
    parser.add_argument("--quick", action="store_true", help="a sample: seconds, to see that it runs")
    parser.add_argument("--core", type=int, default=0, help="the router's core (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/plots"), help="where PNG files go")
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    names = chosen(parser, options.cases, CASES)
    gc.disable()  # pauses of this process are none of the router's
    run("router", names, lambda name: CASES[name](options))


if __name__ == "__main__":
    main()
