"""`python -m tests.chaos --seconds 600 --seed 1 --clients 32`: breaks a mesh of real processes and judges
what its clients were told. A table, then one JSON line; exit code 1 where an answer is
wrong, or a request hangs, or something leaks."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.model_cache import model_dir
from shared.runtime.service import run_loop
from tests.chaos.judging import Must, is_red, missed
from tests.chaos.scene import FEW, NODES, TWO_ROUTERS, Scene
from tests.chaos.story import SEEN, Outcome, Plan, hastily, really, run

_WHOLE = 600.0  # seconds from which on a run has to show what a whole one must


def main() -> int:
    """Run, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the run (default 600)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults, and of what clients ask")
    parser.add_argument("--clients", type=int, default=32, help="that ask at the same time (default 32)")
    parser.add_argument("--burst", type=int, default=Plan.burst, help="faults between two quiet windows")
    parser.add_argument("--quiet", type=float, default=Plan.quiet, help="seconds of a quiet window")
    parser.add_argument("--kinds", nargs="+", default=(), help="only these kinds of faults")
    parser.add_argument("--routers", type=int, choices=(1, 2), default=1, help="that clients are dealt to")
    parser.add_argument("--few", action="store_true", help="one worker of each role")
    parser.add_argument(
        "--real", action="store_true", help="the development model; few clients, short prompts"
    )
    parser.add_argument("--without", choices=SEEN, default="", help="a check to switch off: turns red")
    parser.add_argument("--logs", default="", help="directory of the nodes' logs (default: a temporary one)")
    options = parser.parse_args()
    nodes = FEW if options.few else TWO_ROUTERS if options.routers == 2 else NODES
    scene = Scene(nodes=nodes)
    plan = Plan(
        seconds=options.seconds,
        seed=options.seed,
        clients=options.clients,
        burst=options.burst,
        quiet=options.quiet,
        kinds=options.kinds,
        scene=scene,
    )
    if options.without:
        plan = hastily(plan, options.without)
    if options.real:
        plan = really(plan, model_dir())
    directory = Path(options.logs or tempfile.mkdtemp(prefix="pdd-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"chaos for {plan.seconds:.0f} s, seed {plan.seed}; logs in {directory}\n")
    sys.stdout.flush()
    found: list[Outcome] = []

    async def story() -> int:
        found.append(await run(plan, directory))
        return 0

    run_loop(story())
    (directory / "script.txt").write_text("\n".join(found[0].script), encoding="utf-8")
    line = found[0].line
    left = missed(line, Must()) if plan.seconds >= _WHOLE else []
    _show(found[0], left)
    return 1 if is_red(line) or left else 0


def _show(outcome: Outcome, left: Sequence[str]) -> None:
    for note in outcome.notes:
        sys.stderr.write(f"{note}\n")
    width = max(map(len, outcome.line))
    for key, value in outcome.line.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
        sys.stdout.write(f"{key:<{width}}  {text or 0}\n")
    red = is_red(outcome.line)
    sys.stdout.write(f"{'red' if red else 'missed: ' + '; '.join(left) if left else 'green'}\n")
    sys.stdout.write(json.dumps({**outcome.line, "missed": list(left)}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
