"""Transfers of the agentic trace: what a decoder's cache lacks of each request, and when.

Only lengths and prefix structure are in the trace. Sessions begin at moments drawn by a seed; the whole
trace is laid on a ring that is as long as the wanted load makes it, so that the load is the same at
every time.
"""

from __future__ import annotations

import gzip
import random
from dataclasses import dataclass
from pathlib import Path

import msgspec

DEFAULT = Path("../shared/traces/agentic_sessions.jsonl.gz")
IDLE = 0.0
"""Seconds after which a decoder's cache has given an unused prefix up."""


class Session(msgspec.Struct, frozen=True):
    """One line of the trace. A request: [t, isl, osl, parent, shared, think, api]."""

    session: int
    requests: list[tuple[float, int, int, int, int, float, float]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One transfer: `size` in bytes, `at` in seconds, of a session that stays with one sender."""

    at: float
    size: int
    session: int


def sessions(path: Path, idle: float = IDLE, most: int | None = None) -> list[list[tuple[float, int]]]:
    """(seconds from the session's start, missing tokens) of each request that lacks any, by session.

    Raises OSError where the file cannot be read, msgspec.ValidationError where it is no such trace.
    """
    found = []
    with gzip.open(path) as lines:
        for line in lines:
            requests = msgspec.json.decode(line, type=Session).requests
            found.append(
                [(each[0], missing) for each in requests if (missing := _missing(requests, each, idle))]
            )
            if most is not None and len(found) >= most:
                break
    return found


def _missing(
    requests: list[tuple[float, int, int, int, int, float, float]],
    one: tuple[float, int, int, int, int, float, float],
    idle: float,
) -> int:
    at, length, _, parent, shared, _, _ = one
    kept = parent >= 0 and (not idle or at - requests[parent][0] <= idle)
    return length - shared if kept else length


def arrivals(
    trace: list[list[tuple[float, int]]], seed: int, *, load: float, rate: float, token_bytes: int
) -> list[Arrival]:
    """All transfers in order, for a line of `rate` bytes/s that they load to `load`."""
    total = sum(tokens for session in trace for _, tokens in session) * token_bytes
    ring = total / (load * rate)
    draw = random.Random(seed)
    found = []
    for number, session in enumerate(trace):
        start = draw.random() * ring
        found += [Arrival((start + at) % ring, tokens * token_bytes, number) for at, tokens in session]
    return sorted(found, key=lambda each: (each.at, each.session))
