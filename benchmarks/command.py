"""What the command lines of all benchmarks have in common: names of cases, progress, results at the end."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from benchmarks.report import Result, show


def say(text: str) -> None:
    """Progress, apart from results."""
    print(text, file=sys.stderr, flush=True)


def command(bench: str, about: str | None, cases: Iterable[str]) -> argparse.ArgumentParser:
    """A parser that takes names of cases."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{bench}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(cases)} (default: all)")
    return parser


def chosen(parser: argparse.ArgumentParser, names: Sequence[str], cases: Iterable[str]) -> list[str]:
    """The named cases, all where none is; ends the process with the parser's error for an unknown one."""
    known = list(cases)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(known)}")
    return list(names) or known


def run(bench: str, names: Iterable[str], case: Callable[[str], list[Result]]) -> None:
    """Run the cases by name, say how long each took, and show all results last."""
    results: list[Result] = []
    for name in names:
        began = time.monotonic()
        results += case(name)
        say(f"{name}: {time.monotonic() - began:.0f} s")
    show(bench, results)
