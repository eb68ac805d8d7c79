"""Plots of what the router adds: the distribution of times to first token."""

from __future__ import annotations

from pathlib import Path

from benchmarks.router.overhead import Seen


def plot_latency(seen: Seen, path: Path) -> bool:
    """Parts of requests against milliseconds, as a PNG; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    rows = {
        "no router, short": seen.bare,
        "no router, 32k tokens": seen.bare_long,
        "short": seen.short,
        "short beside 32k": seen.beside,
        "32k tokens, next turn": seen.next,
        "32k tokens, first turn": seen.first,
    }
    for name, runs in rows.items():
        values = sorted(one for run in runs for one in run)
        axes.step(values, [(at + 1) / len(values) for at in range(len(values))], where="post", label=name)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds to the first token")
    axes.set_ylabel("part of the requests")
    axes.axhline(0.99, color="grey", linewidth=0.5)
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True
