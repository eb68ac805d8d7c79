"""What benchmarks say: a table for people, JSON lines for programs; each case beside its baseline."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Quartiles = tuple[float, float, float]


def quartiles(values: Sequence[float]) -> Quartiles:
    """Lower quartile, median, upper quartile; of one value all three are it."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


@dataclass(frozen=True, slots=True)
class Result:
    """One line. `must`: the least ratio (or the most, where `most`) that is called met; `noise`: how far from
    it, as a part of it, a median says nothing. With `spread` (the value's quartiles over the runs) the bound
    is one of the value itself, in its unit, and the ratio is shown beside it."""

    case: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: Quartiles | None = None
    must: float | None = None
    most: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    spread: Quartiles | None = None

    @property
    def verdict(self) -> str:
        """met, missed, or undecided where the quartiles lie on both sides of what must be."""
        judged = self.spread or self.ratio
        if self.must is None or judged is None:
            return ""
        low, middle, high = judged
        if abs(middle - self.must) < self.noise * self.must:
            return "undecided"
        if self.most:
            return "met" if high <= self.must else "missed" if low > self.must else "undecided"
        return "met" if low >= self.must else "missed" if high < self.must else "undecided"

    def line(self, bench: str) -> str:
        """The JSON line of a case of `bench`."""
        shown: dict[str, Any] = {"bench": bench, "case": self.case, "value": _short(self.value)}
        shown |= {"unit": self.unit, "baseline": _short(self.baseline)}
        if self.ratio is not None:
            low, middle, high = (_short(each) for each in self.ratio)
            shown |= {"ratio": middle, "ratio_quartiles": [low, high]}
        if self.spread is not None:
            shown |= {"value_quartiles": [_short(self.spread[0]), _short(self.spread[2])]}
        if self.must is not None:
            shown |= {"must": f"{'<=' if self.most else '>='} {self.must:g}", "verdict": self.verdict}
        return json.dumps(shown | self.more)


def bounded(
    case: str,
    values: Sequence[float],
    unit: str,
    must: float | None,
    *,
    most: bool,
    baselines: Sequence[float] = (),
    **more: Any,
) -> Result:
    """The median of some runs, bounded itself; `baselines`: what was measured beside each run."""
    ratio = [one / other for one, other in zip(values, baselines, strict=True)] if baselines else []
    return Result(
        case,
        statistics.median(values),
        unit,
        statistics.median(baselines) if baselines else None,
        quartiles(ratio) if ratio else None,
        must,
        most,
        more={"runs": len(values), **more},
        spread=quartiles(values),
    )


def paired(
    case: str, values: Sequence[float], baselines: Sequence[float], unit: str, must: float | None, **more: Any
) -> Result:
    """Interleaved pairs: medians of both, the quartiles of their ratios; within 1% they count as equal."""
    ratios = [one / other for one, other in zip(values, baselines, strict=True)]
    return Result(
        case,
        statistics.median(values),
        unit,
        statistics.median(baselines),
        quartiles(ratios),
        must,
        more={"pairs": len(ratios), **more},
        noise=0.01,
    )


def table(results: Sequence[Result]) -> str:
    """Aligned columns."""
    rows = [("case", "value", "unit", "baseline", "ratio", "quartiles", "must", "")]
    for each in results:
        ratio, judged = each.ratio, each.spread or each.ratio
        rows.append(
            (
                each.case,
                f"{each.value:.4g}",
                each.unit,
                "-" if each.baseline is None else f"{each.baseline:.4g}",
                "-" if ratio is None else f"{ratio[1]:.3g}",
                "-" if judged is None else f"{judged[0]:.3g}..{judged[2]:.3g}",
                "-" if each.must is None else f"{'<=' if each.most else '>='} {each.must:g}",
                each.verdict,
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def show(bench: str, results: Sequence[Result]) -> None:
    """Print the table, the machine, and a JSON line for each case."""
    print(table(results))
    print(json.dumps({"bench": bench, **machine()}))
    for result in results:
        print(result.line(bench), flush=True)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "machine": platform.processor() or platform.machine(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "commit": found.stdout.strip(),
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
