"""Fuzz what reads bytes from strangers: `python -m tests.fuzz [TARGET ...] --seconds 60 --seed 1`.

Inputs that take new ways through the code are kept in tests/fuzz/corpus, where `make test` runs them again.
Findings are printed, written beside (`--findings`), and make the exit status 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz import corpora
from tests.fuzz.loop import Search
from tests.fuzz.targets import Target, targets


def fuzz(target: Target, seconds: float, seed: int, findings: Path) -> int:
    """Search one target and keep what was found; how many findings."""
    search = Search(target, random.Random(seed))
    search.begin(corpora.read(target.name))
    began, before = time.monotonic(), len(search.edges)
    search.run(seconds)
    fresh = corpora.write(target.name, search.kept)
    rate = search.tried / max(time.monotonic() - began, 1e-3)
    say(
        f"{target.name}: {search.tried} inputs ({rate:.0f}/s), {before} -> {len(search.edges)} edges, "
        f"{len(search.kept)} kept ({fresh} new), {len(search.findings)} findings"
    )
    for at, finding in enumerate(search.findings):
        findings.mkdir(parents=True, exist_ok=True)
        path = findings / f"{target.name}-{at}.bin"
        path.write_bytes(finding.data)
        say(f"\n{path}: {finding.data[:80]!r}")
        traceback.print_exception(finding.error, limit=-4, file=sys.stdout)
    return len(search.findings)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    known = targets()
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), help="where findings go")
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in known]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(known)}")
    found = [
        fuzz(known[name], options.seconds, options.seed, options.findings)
        for name in options.targets or known
    ]
    sys.exit(bool(sum(found)))


if __name__ == "__main__":
    main()
