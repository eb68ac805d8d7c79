"""What P refuses: what never fits, what would wait too long, and large deltas while the line is behind
(I8).
"""

from __future__ import annotations

from shared.wire.messages import RefuseReason
from shared.worker.admission import RETRY_SOON, Refusal
from shared.worker.asked import Asked
from shared.worker.kv_out import KvOut
from shared.worker.worker_site import Site

LARGE_DELTA = 1 / 64
"""Part of the pool above which the blocks that a prefill must make count as a large delta."""


class PrefillGate:
    """Admission of prefills. Takes nothing: blocks are taken when a prefill starts."""

    def __init__(self, site: Site, out: KvOut) -> None:
        self._site = site
        self._out = out

    def refusal(self, ask: Asked, queued: int) -> Refusal | None:
        """Why a prefill cannot be taken, with `queued` others waiting; None: it can."""
        site = self._site
        blocks = site.blocks_for(len(ask.ids))
        if site.draining:
            return Refusal(RefuseReason.DRAINING, RETRY_SOON, f"{site.node} drains")
        if len(ask.ids) > site.max_context:
            detail = f"{len(ask.ids)} ids; the context is {site.max_context}"
            return Refusal(RefuseReason.TOO_LONG, 0.0, detail)
        if blocks > site.pool.total:
            return Refusal(RefuseReason.TOO_LONG, 0.0, f"{blocks} blocks; the pool has {site.pool.total}")
        if queued >= site.policy.max_queued:
            return Refusal(RefuseReason.QUEUE_FULL, RETRY_SOON, f"{queued} prefills wait")
        return None

    @property
    def behind(self) -> bool:
        """Whether more waits to be sent than may."""
        return self._out.pins.blocks > self._out.pins.most

    def backlog(self, ask: Asked) -> Refusal | None:
        """While the line is behind: whether a prefill would add much to what waits for it."""
        site, pins = self._site, self._out.pins
        new = site.blocks_for(len(ask.ids)) - len(site.pool.match(ask.hashes))
        if new <= max(1, LARGE_DELTA * site.pool.total):
            return None
        detail = f"{pins.blocks} blocks wait to be sent, more than {pins.most}"
        return Refusal(RefuseReason.LINE_BACKLOG, self._drain_time(), detail)

    def _drain_time(self) -> float:
        """Seconds until the bytes that wait for the lines have left, by the slowest line."""
        backlog: dict[str, int] = {}
        for transfer in self._out.all():
            line = self._site.line_of(transfer.target)
            backlog[line] = backlog.get(line, 0) + transfer.total_bytes - transfer.acked_bytes
        rates = {line: self._site.line_rate(line) * self._site.line_gain(line) for line in backlog}
        return max([RETRY_SOON, *(size / rates[line] for line, size in backlog.items() if rates[line] > 0)])
