"""PNG files of a run, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import say

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes and its curves by name."""

    curves: Mapping[str, Curve]
    across: str
    up: str
    title: str = ""
    logarithmic: bool = False  # the horizontal axis
    marks: tuple[float, ...] = ()  # horizontal positions


def draw(path: Path, panels: Sequence[Panel], columns: int = 2) -> None:
    """Write a picture of some panels, or say that there is none."""
    try:
        import matplotlib as mpl
    except ImportError:
        say(f"no {path.name}: matplotlib is not installed")
        return
    mpl.use("Agg")
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.5 * columns, 4.2 * rows), layout="constrained")
    for at, panel in enumerate(panels, 1):
        _panel(figure.add_subplot(rows, columns, at), panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    say(f"plot: {path}")


def distribution(values: Sequence[float]) -> Curve:
    """How much of all values is at most so large."""
    ordered = sorted(values)
    return [(each, (at + 1) / len(ordered)) for at, each in enumerate(ordered)]


def _panel(axes: Any, panel: Panel) -> None:
    for name, curve in panel.curves.items():
        axes.plot([x for x, _ in curve], [y for _, y in curve], label=name)
    if panel.logarithmic:
        axes.set_xscale("log")
    for mark in panel.marks:
        axes.axvline(mark, color="grey", linewidth=0.5)
    axes.set(xlabel=panel.across, ylabel=panel.up, title=panel.title)
    axes.grid(alpha=0.3)
    axes.legend()
