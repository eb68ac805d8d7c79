"""Deals each line's rate among its senders, from their reports. Knows no requests; the division itself is
policy.
"""

from __future__ import annotations

from services.router.lines import Line
from services.router.mesh import Mesh
from shared.policy.line_share import SenderReport, shares
from shared.wire.messages import LineShare

EVERY = 0.05
"""Seconds between two dealings while a line has a backlog: most transfers of agents are over in less than a
tenth of a second, and what was dealt to those is lost until then."""

HORIZON = 0.1
"""Seconds until other shares count: a dealing and a report's way."""

TTL = 1.0
"""Seconds that a share counts without being renewed."""


class Sharing:
    """Sends shares while there is something to share; the transport of each sender obeys."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._seq = 0

    def deal(self) -> bool:
        """Send each sender its part of each line. Whether any line has a backlog: then it is due again."""
        busy = False
        for line in self._mesh.fleet.lines.all():
            if line.rate > 0:
                busy |= self._deal(line)
        return busy

    def _deal(self, line: Line) -> bool:
        reports: dict[str, SenderReport] = {}
        for worker in self._mesh.fleet.all():
            report = worker.report
            if report is None or worker.suspect or not report.unsent_bytes.get(line.name):
                continue
            unsent = report.unsent_bytes[line.name]
            smallest = report.smallest_remaining.get(line.name, unsent)
            oldest = report.oldest_age_ms.get(line.name, 0) / 1000
            reports[worker.node] = SenderReport(unsent, smallest, oldest)
        rates = shares(line.rate, reports, horizon=HORIZON)
        for node, rate in rates.items():
            self._seq += 1
            share = LineShare(line.name, rate, self._seq, int(1000 * TTL), len(rates))
            self._mesh.send(node, share)
        return bool(rates)
