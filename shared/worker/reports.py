"""Load reports: numbers of this worker for its routers, on change and every second.

A transfer that begins or ends changes whose turn it is on a line: routers hear of it within 20 ms. Other
numbers change all the time; they are told at most every 100 ms.
"""

from __future__ import annotations

import msgspec

from shared.wire.messages import LoadReport
from shared.worker.kv_out import KvOut
from shared.worker.prefilling import Prefilling
from shared.worker.worker_site import Site

APART = 0.1
"""Seconds between two reports at least."""

LINE_APART = 0.02
"""The same after a transfer has begun or ended."""


class Reports:
    """Makes and sends them."""

    def __init__(self, site: Site, out: KvOut, prefilling: Prefilling) -> None:
        self._site = site
        self._out = out
        self._prefilling = prefilling
        self._seq = 0
        self._last: LoadReport | None = None
        self._sent_at = float("-inf")
        self._looked_at = float("-inf")
        self._told = 0  # changes of transfers that the last look has seen

    def changed(self, now: float) -> None:
        """Something happened: a report is due soon, or later where one has just left."""
        if self._site.peers.routers():
            apart = LINE_APART if self._out.queues.changes != self._told else APART
            self._site.timers.sooner(("load", None), max(now, self._looked_at + apart))

    def on_due(self, now: float) -> None:
        """Send where numbers differ from the last report, or where that is old."""
        routers = self._site.peers.routers()
        if not routers:
            return
        self._looked_at, self._told = now, self._out.queues.changes
        every = self._site.policy.report_every
        report = self.make(now)
        same = self._last is not None and msgspec.structs.replace(report, seq=self._last.seq) == self._last
        if not same or now >= self._sent_at + every:
            self._seq += 1
            self._last = msgspec.structs.replace(report, seq=self._seq)
            self._sent_at = now
            for router in routers:
                self._site.outbox.send(router, self._last)
        self._site.timers.sooner(("load", None), self._sent_at + every)

    def make(self, now: float) -> LoadReport:
        """The numbers now."""
        site = self._site
        stats = site.engine.stats
        lines = self._out.queues.lines(now)
        return LoadReport(
            seq=self._seq,
            running=stats.running,
            queued=stats.queued + self._prefilling.queued,
            queued_tokens=stats.queued_tokens + self._prefilling.queued_tokens,
            free_blocks=max(site.pool.available, 0),
            promised_blocks=site.pool.promised_total,
            pinned_blocks=site.pool.pinned,
            prefill_rate=stats.prefill_rate,
            decode_step_ms=stats.decode_step_ms,
            unsent_bytes={name: load.unsent for name, load in lines.items()},
            smallest_remaining={name: load.smallest for name, load in lines.items()},
            oldest_age_ms={name: int(1e3 * load.oldest_age) for name, load in lines.items()},
            line_rate={name: site.line_rate(name) for name in lines},
            send_pinned_blocks=self._out.pins.blocks,
            counters={
                "steps": float(stats.steps),
                "prompt_tokens": site.counters["prompt_tokens_total"],
                "prompt_tokens_cached": site.counters["prompt_tokens_cached_total"],
            },
            unsent_by_class={name: load.by_class for name, load in lines.items()},
            sent_bytes=dict(self._out.queues.sent),
            line_gain={name: gain for name in lines if (gain := round(site.line_gain(name), 2)) > 1},
        )
