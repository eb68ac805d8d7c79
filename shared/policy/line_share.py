"""One line, many senders: reports in, rates out that sum to the line's cap (pure).

Each sender alone would serve its own oldest and shortest transfers; the line as a whole should serve *the*
oldest and *the* shortest. So the sender with the oldest transfer gets half of the line, and is to spend it on
that one; the other half goes to the shortest transfers wherever they are, and is to be spent on those. A
small part of that half goes evenly to all senders that have something to send: their transfers below one BDP
per sender pass without waiting for a turn.
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


@dataclass(frozen=True, slots=True)
class Share:
    """What one sender may use, in bytes per second: for its oldest transfers, and for its shortest."""

    oldest: float
    shortest: float

    @property
    def rate(self) -> float:
        return self.oldest + self.shortest

    @property
    def oldest_part(self) -> float:
        """Part of the rate that serves the oldest."""
        return self.oldest / self.rate if self.rate else 0.0


EVEN_PART = 0.1
"""Part of the cap that is dealt evenly among the senders with a backlog."""


class _Deal:
    """A line's rate while it is dealt out. No sender gets more than it can use until the next dealing."""

    def __init__(self, cap: float, reports: Mapping[str, SenderReport], horizon: float) -> None:
        self.left = cap
        self.oldest = dict.fromkeys(reports, 0.0)
        self.shortest = dict.fromkeys(reports, 0.0)
        self._use = {node: _over(report.unsent, horizon) for node, report in reports.items()}

    def give(self, lane: dict[str, float], node: str, most: float) -> None:
        part = min(self.left, self._use[node], most)
        lane[node] += part
        self._use[node] -= part
        self.left -= part


def _over(size: int, horizon: float) -> float:
    return size / horizon if horizon else float("inf")


def shares(
    cap: float, reports: Mapping[str, SenderReport], oldest_share: float = 0.5, horizon: float = 0.0
) -> dict[str, Share]:
    """The share of each sender with a backlog; they sum to `cap`, in bytes per second. Ties go to the lower
    name.

    `horizon`: seconds until other shares can count. The sender with the shortest transfer is dealt no more
    than that one can use until then; what it leaves goes to the next shortest, and at last to the senders
    with most to send, so that little of the line is granted to senders that run dry.
    """
    waiting = {node: report for node, report in reports.items() if report.unsent > 0}
    if not waiting:
        return {}
    deal = _Deal(cap, waiting, horizon)
    for node in waiting:
        deal.give(deal.shortest, node, cap * EVEN_PART / len(waiting))
    oldest = min(waiting, key=lambda node: (-waiting[node].oldest_age, node))
    deal.give(deal.oldest, oldest, min(deal.left, cap * oldest_share))
    for node in sorted(waiting, key=lambda node: (waiting[node].smallest, node)):
        deal.give(deal.shortest, node, _over(waiting[node].smallest, horizon))
    most = sorted(waiting, key=lambda node: (-waiting[node].unsent, node))
    for node in most:
        deal.give(deal.oldest, node, deal.left)
    deal.oldest[most[0]] += deal.left  # all run dry before the next dealing
    return {node: Share(deal.oldest[node], deal.shortest[node]) for node in waiting}


@dataclass(frozen=True, slots=True)
class _Grant:
    """A share that a router has named, until it is stale."""

    seq: int
    rate: float
    until: float
    senders: int
    oldest: float


class ShareHeld:
    """The sender's side: the share that counts now. It obeys the lowest node name among the routers it
    hears; a share that is not renewed in time falls back to an equal part of the cap."""

    def __init__(self) -> None:
        self._grants: dict[str, _Grant] = {}

    def grant(
        self, now: float, router: str, seq: int, rate: float, ttl: float, senders: int, oldest: float = 0.5
    ) -> None:
        """A `LineShare` came; older ones than the last are let pass. `oldest`: part of the rate for the
        oldest transfers."""
        known = self._grants.get(router)
        if known is None or seq > known.seq:
            self._grants[router] = _Grant(seq, rate, now + ttl, max(1, senders), oldest)

    def drop(self, router: str) -> None:
        """That router's session has ended."""
        self._grants.pop(router, None)

    def rate(self, now: float, cap: float) -> float:
        """Bytes per second that this sender may use of a line of `cap`."""
        if not self._grants:
            return cap
        grant = self._grants[min(self._grants)]
        return min(grant.rate, cap) if now < grant.until else cap / grant.senders

    def oldest(self, now: float) -> float | None:
        """Part of the rate that is for the oldest transfers; None: no share that counts says."""
        if not self._grants:
            return None
        grant = self._grants[min(self._grants)]
        return grant.oldest if now < grant.until else None
