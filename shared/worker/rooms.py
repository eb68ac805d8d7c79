"""The rooms of one worker, and what each is told of what the others have changed. Knows no messages of its
own.
"""

from __future__ import annotations

from shared.kv.layout import KvLayout
from shared.wire.messages import Announce
from shared.worker.admitting import Admitting
from shared.worker.decoding import Decoding
from shared.worker.kv_events import KvEventLog
from shared.worker.kv_in import KvIn
from shared.worker.kv_out import KvOut
from shared.worker.meeting import Meeting
from shared.worker.orphans import Orphans
from shared.worker.prefilling import Prefilling
from shared.worker.pressure import Pressure
from shared.worker.reports import Reports
from shared.worker.sources import Sources
from shared.worker.worker_site import Site


class Rooms:
    """Everything of a worker but its faces."""

    def __init__(self, site: Site, layout: KvLayout, announce: Announce) -> None:
        self.site = site
        self.sources = Sources()
        self.kv_out = KvOut(site, self.sources)
        self.kv_in = KvIn(site, layout)
        self.prefilling = Prefilling(site, self.kv_out)
        self.decoding = Decoding(site, self.kv_in)
        self.sources.join(self.prefilling)
        self.sources.join(self.decoding)
        self.admitting = Admitting(site, self.kv_in, self.decoding)
        self.pressure = Pressure(site, self.kv_in, self.decoding)
        self.orphans = Orphans(site, (self.prefilling, self.decoding))
        self.kv_events = KvEventLog(site)
        self.reports = Reports(site, self.kv_out, self.prefilling)
        self.meeting = Meeting(site, announce)

    def settle(self, now: float) -> None:
        """After every event: tell each room what the others have changed, until nothing changes any more."""
        while True:
            stored, removed, cleared = self.site.pool.drain_events()
            if stored or removed or cleared:
                self.kv_events.tell(stored, removed, cleared)
            if stored:
                self.kv_in.refresh()
                self.kv_out.on_stored(stored)
                self.prefilling.on_stored()
            facts = self.kv_in.settle(now)
            for fact in facts:
                self.decoding.on_fact(now, fact)
            self.prefilling.start_queued(now)
            if not (stored or removed or cleared or facts):
                break
        self.reports.changed(now)

    def counts(self) -> dict[str, int]:
        """What is held now: all zero when nothing goes on (I3)."""
        return {
            "prefills": len(self.prefilling),
            "requests": len(self.decoding),
            "tickets": len(self.kv_in),
            "buffers": self.kv_in.buffers,
            "transfers": len(self.kv_out),
            "chunks": self.kv_out.writing,
            "alignments": len(self.kv_in.alignments) + len(self.kv_out.alignments),
            "send_pins": self.kv_out.pins.blocks,
            "pins": self.site.pool.pinned,
            "promises": self.site.pool.promised_total,
        }

    def check(self) -> None:
        """Raise InvariantBroken where the books of pool and tickets do not add up."""
        self.site.pool.check()
        self.kv_in.ledger.check()
