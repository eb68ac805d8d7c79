"""One line, many senders: reports in, rates out that sum to the line's cap (pure).

Each sender alone would serve its own oldest and shortest transfers; the line as a whole should serve *the*
oldest and *the* shortest. So the sender with the oldest transfer gets half of what is dealt, the one with
the least remaining the other half, and a small part goes evenly to all others that have something to send:
their transfers below one BDP per sender pass without waiting for a turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SenderReport:
    """What one sender has for one line."""

    unsent: int  # bytes promised and not acknowledged
    smallest: int  # least remaining bytes of one transfer
    oldest_age: float  # seconds


EVEN_PART = 0.1
"""Part of the cap that is dealt evenly among the senders with a backlog."""


def shares(
    cap: float, reports: Mapping[str, SenderReport], oldest_share: float = 0.5, horizon: float = 0.0
) -> dict[str, float]:
    """Rate of each sender with a backlog, in bytes per second; they sum to `cap`. Ties go to the lower
    name.

    `horizon`: seconds until other shares can count. The sender with the shortest transfer is dealt no more
    than it can use until then; what it leaves goes to the next shortest, so that little of the line is
    granted to senders that run dry.
    """
    waiting = {node: report for node, report in reports.items() if report.unsent > 0}
    if not waiting:
        return {}
    even = cap * EVEN_PART / len(waiting)
    rates = dict.fromkeys(waiting, even)
    dealt = cap * (1 - EVEN_PART)
    oldest = min(waiting, key=lambda node: (-waiting[node].oldest_age, node))
    rates[oldest] += dealt * oldest_share
    left = dealt * (1 - oldest_share)
    order = sorted(waiting, key=lambda node: (waiting[node].smallest, node))
    for node in order if horizon else ():
        used = min(left, max(0.0, waiting[node].unsent / horizon - rates[node]))
        rates[node] += used
        left -= used
    rates[order[0]] += left
    return rates


class ShareHeld:
    """The sender's side: the share that counts now. It obeys the lowest node name among the routers it
    hears; a share that is not renewed in time falls back to an equal part of the cap."""

    def __init__(self) -> None:
        self._grants: dict[str, tuple[int, float, float, int]] = {}  # router -> (seq, rate, until, senders)

    def grant(self, now: float, router: str, seq: int, rate: float, ttl: float, senders: int) -> None:
        """A `LineShare` came; older ones than the last are let pass."""
        known = self._grants.get(router)
        if known is None or seq > known[0]:
            self._grants[router] = (seq, rate, now + ttl, max(1, senders))

    def drop(self, router: str) -> None:
        """That router's session has ended."""
        self._grants.pop(router, None)

    def rate(self, now: float, cap: float) -> float:
        """Bytes per second that this sender may use of a line of `cap`."""
        if not self._grants:
            return cap
        router = min(self._grants)
        _, rate, until, senders = self._grants[router]
        if now < until:
            return min(rate, cap)
        return cap / senders
