"""Checks the demo: every answer against the reference forward, and the figures that it has to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.demo.client import Run
from tests.support.reference import Reference
from tests.support.replay import replay

PIPELINES = {
    "long": "P-RLD-MD",
    "followup": "P-MD",
    "md_local": "MD",
    "singular": "P-RLD",
    "relay_off": "P-MD",
}


class Judge:
    """Holds the reference model, which shares no code with the engine."""

    def __init__(self, model: Path) -> None:
        self._reference = Reference.load(model)

    def equals_reference(self, run: Run, *, min_tokens: int, stop_ids: list[int]) -> bool:
        """Whether the reference, forced through the same ids, would have drawn each of them (greedy)."""
        rules = {"temperature": 0.0, "min_tokens": min_tokens, "stop_ids": stop_ids}
        return bool(run.ids) and replay(self._reference, run.prompt_ids, run.ids, rules).ok


def row(run: Run, equal: bool) -> dict[str, Any]:
    """The JSON object of one request."""
    pdd = run.pdd
    return {
        "name": run.name,
        "pipeline": pdd.get("pipeline", ""),
        "prompt_tokens": run.usage.get("prompt_tokens", len(run.prompt_ids)),
        "md_hit_tokens": pdd.get("md_hit_tokens", 0),
        "kv_bytes_wan": run.kv_bytes_wan,
        "kv_bytes_full": pdd.get("kv_bytes_full", 0),
        "eager_tokens": pdd.get("eager_tokens", 0),
        "handoff_mode": pdd.get("cut", {}).get("mode", "none"),
        "handoff_bytes": pdd.get("handoff_bytes", 0),
        "ttft_ms": round(1e3 * run.ttft, 1),
        "ttst_ms": round(1e3 * run.ttst, 1),
        "stall_ms": round(1e3 * run.stall, 1),
        "equals_reference": equal,
    }


def problems(rows: list[dict[str, Any]], leaked: int) -> list[str]:
    """What the run failed to show, in words; empty: all of it was shown."""
    by_name = {each["name"]: each for each in rows}
    found = [
        f"{name}: pipeline {by_name[name]['pipeline']!r}, expected {pipeline}"
        for name, pipeline in PIPELINES.items()
        if by_name[name]["pipeline"] != pipeline
    ]
    found += [
        f"{each['name']}: an id differs from the reference" for each in rows if not each["equals_reference"]
    ]
    relay, bare = by_name["long"], by_name["relay_off"]
    gap, bare_gap = (each["ttst_ms"] - each["ttft_ms"] for each in (relay, bare))
    if relay["handoff_mode"] == "none":
        found.append("long: no cut from relay to main decode happened")
    if gap > 0.1 * bare_gap:
        found.append(f"TTST - TTFT is {gap:.0f} ms with the relay, more than 0.1 x {bare_gap:.0f} ms without")
    if relay["stall_ms"] > 0.35 * bare["stall_ms"]:
        found.append(
            f"largest stall is {relay['stall_ms']:.0f} ms with the relay, "
            f"more than 0.35 x {bare['stall_ms']:.0f} ms without"
        )
    if leaked:
        found.append(f"{leaked} blocks are still held after everything has ended")
    return found
