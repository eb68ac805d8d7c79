"""The router's policy under which every request takes one road, by the name of road or cut."""

from __future__ import annotations

from typing import Any

RELAYED = {"md_local_tokens": 0, "relay_margin": -10.0, "singular": False}
ROADS: dict[str, tuple[str, dict[str, Any]]] = {
    "MD": ("MD", {"md_local_tokens": 1 << 20}),
    "P-MD": ("P-MD", {"md_local_tokens": 0, "relay": False}),
    "one_shot": ("P-RLD-MD", {**RELAYED, "catch_up_backlog": 1 << 20}),
    "catch_up": ("P-RLD-MD", {**RELAYED, "catch_up_backlog": 0}),
    "singular": (
        "P-RLD",
        {
            "md_local_tokens": 0,
            "relay_margin": -10.0,
            "singular_min_uncached": 1,
            "singular_pool_fraction": 1.0,
        },
    ),
}

MIXED: dict[str, Any] = {
    "md_local_tokens": 24,
    "md_local_busy": 1.0,
    "relay_margin": 0.0,
    "catch_up_backlog": 4,
    "singular_min_uncached": 64,
    "singular_pool_fraction": 0.5,
}
"""A policy under which every road is taken by some requests."""
