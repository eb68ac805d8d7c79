"""The hand-off from a relay to main decode: the matrix of seams in virtual time, some over real sockets, and
what the ids weigh on the wire.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.command import say
from benchmarks.mesh.handoff_live import sockets
from benchmarks.mesh.handoff_seams import IDS, Cell, bound, measure
from benchmarks.mesh.options import Options
from benchmarks.mesh.plots import Panel, draw
from benchmarks.report import Result, bounded

BACKLOGS = (1, 8, 64, 256, 512)
TRIPS = (1.0, 40.0, 150.0)
SPEEDS = (0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Found:
    """What a cell has shown. Seconds."""

    cell: Cell
    waits: tuple[float, ...]
    parts: tuple[float, ...]  # of what is allowed
    rounds: int
    without: float  # the longest wait of such a request without a relay
    weights: tuple[float, ...]


def look(cell: Cell, requests: int) -> Found:
    """One cell, and its baseline."""
    seams, _, weights = measure(cell, requests, 1)
    alone = replace(cell, mode="no relay", at_once=1, busy=False)
    _, stalls, _ = measure(alone, 1, 1)
    return Found(
        cell,
        tuple(seam.wait for seam in seams),
        tuple(seam.wait / bound(cell, seam) for seam in seams),
        max((seam.rounds for seam in seams), default=0),
        statistics.median(stalls),
        tuple(weights.by_id),
    )


def matrix(options: Options) -> list[Cell]:
    """All that is looked at."""
    few = options.quick
    backlogs, speeds = ((8, 256), (0.25, 1.0)) if few else (BACKLOGS, SPEEDS)
    trips = TRIPS[1:2] if few else TRIPS
    found = []
    for mode in ("one-shot", "catch-up"):
        found += [Cell(mode, n, rtt, speed) for n in backlogs for rtt in trips for speed in speeds]
        found += [Cell(mode, 100, rtt, speed, busy=True) for rtt in trips for speed in speeds]
        found += [Cell(mode, n, rtt, 1.0, at_once=50) for n in (30, 200) for rtt in trips]
    return found


def case(options: Options) -> list[Result]:
    """The matrix in virtual time, real sockets, and what ids weigh."""
    cells = matrix(options)
    with concurrent.futures.ProcessPoolExecutor(options.processes) as pool:
        found = list(pool.map(look, cells, itertools.repeat(options.pick(2, 6, 12))))
    found = [one for one in found if one.waits]  # where P's KV was there first nothing was relayed
    _write(found, options.out)
    results = []
    for mode in ("one-shot", "catch-up"):
        for name, chosen in _groups([one for one in found if one.cell.mode == mode]):
            results.append(_judged(f"handoff {mode}, {name}", chosen))
    weights = [weight for one in found for weight in one.weights]
    name = f"handoff: bytes of an id in runs of {IDS} and more"
    results.append(
        bounded(name, weights, "B", 6.0, most=True, baselines=[4.0] * len(weights), longest=max(weights))
    )
    return results + sockets(options)


def _groups(found: Sequence[Found]) -> list[tuple[str, list[Found]]]:
    """Cells that are shown in one line."""
    groups: dict[str, list[Found]] = {}
    for one in found:
        kind = "50 at once" if one.cell.at_once > 1 else "MD busy" if one.cell.busy else "alone"
        groups.setdefault(f"{kind}, RTT {one.cell.rtt_ms:g} ms", []).append(one)
    return list(groups.items())


def _judged(name: str, found: Sequence[Found]) -> Result:
    """Waits of some cells: the 99th percentile of what each is of what it may be."""
    parts = sorted(part for one in found for part in one.parts)
    waits = sorted(wait for one in found for wait in one.waits)
    worst = _at(parts, 0.99)
    say(f"{name}: P50 {_at(waits, 0.5):.3f} s, P99 {_at(waits, 0.99):.3f} s, {worst:.2f} of the bound")
    return Result(
        name,
        worst,
        "of RTT + 2 steps" + (" + extend" if found[0].cell.mode == "one-shot" else ""),
        None,
        None,
        1.0,
        True,
        more={
            "p50_s": round(_at(waits, 0.5), 4),
            "p99_s": round(_at(waits, 0.99), 4),
            "without_relay_s": round(statistics.median(one.without for one in found), 3),
            "rounds": max(one.rounds for one in found),
            "seams": len(waits),
        },
        spread=(worst, worst, worst),
    )


def _at(values: Sequence[float], part: float) -> float:
    """A quantile of sorted values."""
    return values[min(len(values) - 1, int(part * len(values)))]


def _write(found: Sequence[Found], out: Path) -> None:
    """The whole matrix as a table, and its plot."""
    out.mkdir(parents=True, exist_ok=True)
    lines = ["mode backlog rtt_ms speed at_once busy p50_s p99_s rounds without_relay_s"]
    for one in found:
        cell, waits = one.cell, sorted(one.waits)
        lines.append(
            f"{cell.mode} {cell.backlog} {cell.rtt_ms:g} {cell.speed:g} {cell.at_once} {int(cell.busy)} "
            f"{_at(waits, 0.5):.4f} {_at(waits, 0.99):.4f} {one.rounds} {one.without:.3f}"
        )
    (out / "handoff.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    panels = []
    for mode in ("one-shot", "catch-up"):
        curves: dict[str, list[tuple[float, float]]] = {}
        for one in found:
            cell = one.cell
            if cell.mode == mode and cell.at_once == 1 and not cell.busy:
                label = f"RTT {cell.rtt_ms:g} ms, MD at {cell.speed:g} x"
                curves.setdefault(label, []).append((float(cell.backlog), _at(sorted(one.waits), 0.99)))
        panels.append(
            Panel(curves, "ids of the relay", "P99 of the wait at the seam, s", mode, logarithmic=True)
        )
    draw(out / "handoff.png", panels)
