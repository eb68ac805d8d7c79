"""What is given up when growth finds no block. The oldest request is never given up for a younger one: one
always ends.

Main decode first revokes the ticket with the most to come, then parks the youngest sequence. A relay, which
never recomputes, releases the request whose transfer has the longest to go: main decode will have it last.
"""

from __future__ import annotations

from shared.wire.messages import FailReason, Role
from shared.worker.decoding import Decoding
from shared.worker.kv_in import KvIn
from shared.worker.part import Part, Stage
from shared.worker.worker_site import Site


class Pressure:
    """Makes room in the pool of a decoder."""

    def __init__(self, site: Site, kv_in: KvIn, decoding: Decoding) -> None:
        self._site = site
        self._kv_in = kv_in
        self._decoding = decoding

    def relieve(self, starved: int) -> None:
        """Give requests up until each of `starved` sequences can have a block, or only one is left."""
        pool = self._site.pool
        self._site.count("starved_total", starved)
        self._kv_in.alignments.make_room(starved - pool.available)
        while pool.available < starved and (victim := self._victim()) is not None:
            part, reason = victim
            self._decoding.fail(part, reason, f"{starved} sequences found no block")

    def fail_alone(self, part: Part) -> None:
        """The only request here has filled the pool: it cannot go on at this worker."""
        if self._victim() is None and self._site.pool.available < 1:
            detail = f"the pool's {self._site.pool.total} blocks are too few for it"
            self._decoding.fail(part, FailReason.PARKED, detail)

    def _victim(self) -> tuple[Part, FailReason] | None:
        relay = self._site.role is Role.RELAY
        arrival = self._kv_in.most_to_come()
        if arrival is not None and self._kv_in.to_come(arrival.ticket):
            part = self._decoding.get(arrival.rid)
            if part is not None and part.ticket == arrival.ticket:
                return part, FailReason.PRESSURE if relay else FailReason.REVOKED
        holding = sorted((part for part in self._decoding.all() if part.stage is not Stage.ENDED), key=_age)
        if len(holding) < 2:
            return None
        if relay:
            return max(holding[1:], key=_longest), FailReason.PRESSURE
        return holding[-1], FailReason.PARKED


def _age(part: Part) -> int:
    return part.number


def _longest(part: Part) -> tuple[int, int]:
    """What stands in for main decode's remaining transfer, which a relay cannot see: the prompt, and a late
    start.
    """
    return part.upto, part.number
