"""Benchmarks of the mesh: `python -m benchmarks.mesh [CASE ...] [--quick | --full] [--out DIRECTORY]`.

Each case measures its baseline in the same run. Progress goes to stderr, a table and at last JSON lines to
stdout, plots to `--out`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.command import chosen, command, run
from benchmarks.mesh import (
    abort,
    baselines,
    collapse,
    handoff,
    index,
    one_md_lost,
    overload,
    overload_live,
    skew,
)
from benchmarks.mesh.options import DEFAULT_TRACE, Case, Options

CASES: dict[str, Case] = {
    "overload": overload.case,
    "overload-live": overload_live.case,
    "collapse": collapse.case,
    "skew": skew.case,
    "one-md-lost": one_md_lost.case,
    "baselines": baselines.case,
    "abort": abort.case,
    "handoff": handoff.case,
    "index": index.case,
}
"""By name; a case lives in a file of its own."""


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = command("mesh", __doc__, CASES)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a sample: seconds, to see that it runs")
    size.add_argument("--full", action="store_true", help="the whole matrix")
    parser.add_argument("--out", type=Path, default=Path("build/mesh"), help="where PNG files go")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="of cases in virtual time")
    parser.add_argument(
        "--trace",
        type=Path,
        default=DEFAULT_TRACE,
        help="agentic_sessions.jsonl.gz (default: %(default)s; made up where it is not there)",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--processes",
        type=int,
        default=cores,
        help="of cases in virtual time, which run their seeds side by side (default: the cores, %(default)s)",
    )
    return parser


def main() -> None:
    """Parse options, run cases, print."""
    parser = arguments()
    given = parser.parse_args()
    names = chosen(parser, given.cases, CASES)
    options = Options(
        given.quick, given.full, given.out, tuple(given.seeds), given.trace, max(1, given.processes)
    )
    run("mesh", names, lambda name: CASES[name](options))


if __name__ == "__main__":
    main()
