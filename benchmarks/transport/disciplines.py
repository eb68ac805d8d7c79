"""How long each transfer takes on a line of a given rate, in virtual time, under other disciplines than
ours.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from benchmarks.transport.agentic import Arrival


def first_come(arrivals: Sequence[Arrival], rate: float) -> list[float]:
    """Each waits for all before it. Seconds from arrival to the last byte, in the order of arrival."""
    now, took = 0.0, []
    for each in arrivals:
        now = max(now, each.at) + each.size / rate
        took.append(now - each.at)
    return took


def fair_share(arrivals: Sequence[Arrival], rate: float) -> list[float]:
    """All that are open share the line evenly, as many TCP connections would at their best."""
    took = [0.0] * len(arrivals)
    open_ones: list[tuple[float, int]] = []  # (bytes that an open transfer has got when this one ends, which)
    now = served = 0.0  # bytes that each open transfer has got since the beginning

    def run_until(until: float) -> None:
        nonlocal now, served
        while open_ones:
            level, at = open_ones[0]
            end = now + (level - served) * len(open_ones) / rate
            if end > until:
                served += (until - now) * rate / len(open_ones)
                break
            heapq.heappop(open_ones)
            now, served = end, level
            took[at] = now - arrivals[at].at
        now = max(now, until) if until != float("inf") else now

    for at, each in enumerate(arrivals):
        run_until(each.at)
        heapq.heappush(open_ones, (served + each.size, at))
    run_until(float("inf"))
    return took
