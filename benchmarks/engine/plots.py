"""Plots of the engine's benchmarks, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _save(figure: Any, axes: Any, target: Path) -> None:
    from matplotlib import pyplot as plt

    axes.legend()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(target)
    plt.close(figure)


def curve(
    target: Path, title: str, taken: Mapping[int, float], products: Mapping[int, float], attention: float
) -> None:
    """Milliseconds over new tokens, with what products alone take and with the limit that is judged."""
    figure, axes = _axes(title, "new tokens", "milliseconds")
    counts = list(taken)
    axes.plot(counts, [1e3 * taken[count] for count in counts], marker="o", label="extend")
    axes.plot(counts, [1e3 * products[count] for count in counts], "--", label="matrix products alone")
    limits = [1e3 * (1.6 * products[count] + attention) for count in counts]
    axes.plot(counts, limits, ":", label="1.6 x products + KV at 8 GB/s")
    axes.axhline(3e3 * taken[counts[0]], color="grey", linewidth=0.8, label="3 x one token")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _save(figure, axes, target)


def interference(target: Path, points: Mapping[float, tuple[float, float]]) -> None:
    """ITL of decodes and time of the prefill, by how far a step may be stretched."""
    figure, axes = _axes("2,048-token prefill beside 8 decodes", "extend_stretch", "ITL P99, x idle")
    names = [f"{stretch:g}" if stretch < 1e6 else "never cut" for stretch in points]
    axes.plot(names, [ratio for ratio, _ in points.values()], marker="o", label="ITL P99")
    axes.axhline(3.0, color="grey", linewidth=0.8, label="3 x idle")
    other = axes.twinx()
    other.plot(names, [seconds for _, seconds in points.values()], "--s", color="tab:orange")
    other.set_ylabel("prefill, seconds (dashed)")
    _save(figure, axes, target)


def bathtub(target: Path, rates: Mapping[int, float], billed: tuple[float, ...]) -> None:
    """Uncached tokens/s over the hit rate, and revenue with cached tokens billed at a part of the price."""
    figure, axes = _axes("Prompts of 2,048 tokens, chunk 512", "cached, %", "tokens/s (or billed as such)")
    hits = list(rates)
    axes.plot(hits, [rates[hit] for hit in hits], marker="o", label="uncached tokens/s")
    for part in billed:
        earned = [rates[hit] * (1 + part * hit / (100 - hit)) for hit in hits]
        axes.plot(hits, earned, "--", label=f"revenue, cached tokens at {part:.0%}")
    _save(figure, axes, target)
