"""Deals each line's rate among its senders, from their reports. Knows no requests; the division itself is
policy.
"""

from __future__ import annotations

import math

from services.router.lines import Line
from services.router.mesh import Mesh
from shared.policy.line_share import SenderReport, shares
from shared.wire.messages import LineShare, LoadReport

EVERY = 0.02
"""Seconds between two dealings at least: most transfers of agents are over in less than a tenth of a second,
and what was dealt to those is lost until then."""

RENEW = 0.25
"""Seconds between two dealings at most while a line has a backlog."""

HORIZON = 0.06
"""Seconds until other shares count: a report, a dealing, and the way of both."""

NOTHING_SMALL = 1 << 62
"""Bytes, more than any transfer has, that stand for the shortest of a sender with nothing to send now: what
it has is sent and waits for acknowledgement, or is not computed yet."""


class Sharing:
    """Sends shares while there is something to share; the transport of each sender obeys."""

    def __init__(self, mesh: Mesh, oldest_share: float) -> None:
        """`oldest_share`: part of each line for its oldest transfer."""
        self._mesh = mesh
        self._oldest_share = oldest_share
        self._seq = 0
        self._dealt_at = float("-inf")
        self._busy = False

    def concerns(self, report: LoadReport) -> bool:
        """Whether a report may change what is dealt."""
        return self._busy or any(report.unsent_bytes.values())

    def due(self, now: float) -> float:
        """When to deal after a report has come."""
        return max(now, self._dealt_at + EVERY)

    def deal(self, now: float) -> bool:
        """Send each sender its part of each line. Whether any line has a backlog: then it is due again after
        `RENEW`."""
        self._dealt_at = now
        self._busy = False
        for line in self._mesh.fleet.lines.all():
            if line.rate > 0:
                self._busy |= self._deal(line)
        return self._busy

    def _deal(self, line: Line) -> bool:
        reports: dict[str, SenderReport] = {}
        for worker in self._mesh.fleet.all():
            report = worker.report
            if report is None or worker.suspect or not report.unsent_bytes.get(line.name):
                continue
            # reports count bytes of KV, the line carries what they are compressed to
            gain = max(1.0, report.line_gain.get(line.name, 1.0))
            unsent = math.ceil(report.unsent_bytes[line.name] / gain)
            smallest = math.ceil(report.smallest_remaining.get(line.name, 0) / gain) or NOTHING_SMALL
            oldest = report.oldest_age_ms.get(line.name, 0) / 1000
            reports[worker.node] = SenderReport(unsent, smallest, oldest)
        dealt = shares(line.rate, reports, self._oldest_share, HORIZON)
        for node, share in dealt.items():
            self._seq += 1
            ttl = int(1000 * self._mesh.policy.share_ttl)
            part = share.oldest_part
            self._mesh.send(node, LineShare(line.name, share.rate, self._seq, ttl, len(dealt), part))
        return bool(dealt)
