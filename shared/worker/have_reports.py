"""What a receiver tells senders: Have with what has landed, what is needed, and that a ticket is gone.

Reports leave by bytes and by time; needs leave at once, and again where nothing comes of them, since the
sender may not have known the ticket yet.
"""

from __future__ import annotations

from collections import OrderedDict

from shared.kv.ledger import Ledger
from shared.kv.report import runs
from shared.kv.ticket import BlockState
from shared.wire.messages import Have, Rid
from shared.worker.arrival import Arrival
from shared.worker.worker_site import Site

MOST_WAITS = 5
"""How often in a row that is put off while other bytes come in."""

GONE_EVERY = 0.2
"""Seconds between two answers `gone` for the same ticket to the same node."""

ENDED_KEPT = 1024
"""Ended tickets whose request is remembered for the answers to their late chunks."""

LACKING = (BlockState.WANTED, BlockState.LANDING)


class HaveReports:
    """Makes and sends them; keeps no tickets but the names of ended ones."""

    def __init__(self, site: Site, ledger: Ledger) -> None:
        self._site = site
        self._ledger = ledger
        self._gone: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._ended: OrderedDict[bytes, Rid] = OrderedDict()

    def soon(self, now: float, arrival: Arrival) -> None:
        """Something has landed: a report is due."""
        if arrival.unreported >= self._site.line.have_bytes:
            self.report(now, arrival)
        else:
            self._site.timers.sooner(("have", arrival.ticket), now + self._site.line.have_every)

    def report(self, now: float, arrival: Arrival, again: tuple[int, ...] = ()) -> None:
        """Tell the sender what has landed and what is needed. Without a known sender only needs are worth
        telling.
        """
        self._site.timers.clear(("have", arrival.ticket))
        arrival.unreported = 0
        if arrival.sender is None and not arrival.book.needs and not again:
            return
        nodes = self._senders(arrival)
        if not nodes:
            self._site.timers.set(("have", arrival.ticket), now + self._site.policy.ask_again)
            return
        report = self._ledger.report(arrival.book)
        needs = {*again, *(block for first, end in report.needs for block in range(first, end))}
        have = Have(
            arrival.ticket,
            arrival.rid,
            published=report.published,
            ranges=report.ranges,
            needs=runs(sorted(needs)),
        )
        for node in nodes:
            self._site.outbox.send(node, have)
        if needs:
            arrival.asked |= needs
            arrival.waits = 0
            self._wait(now, arrival)

    def ask_again(self, now: float, arrival: Arrival) -> None:
        """Blocks that were asked for are late: ask again, unless bytes come in and they may be among them."""
        arrival.asked = {block for block in arrival.asked if arrival.book.block_state(block) in LACKING}
        if not arrival.asked:
            return
        moves = self._site.counters["kv_bytes_in_total"] > arrival.asked_at
        if moves and arrival.waits < MOST_WAITS:
            arrival.waits += 1
            self._wait(now, arrival)
        else:
            self.report(now, arrival, tuple(arrival.asked))

    def _wait(self, now: float, arrival: Arrival) -> None:
        arrival.asked_at = self._site.counters["kv_bytes_in_total"]
        self._site.timers.set(("ask", arrival.ticket), now + self._site.policy.ask_again)

    def complete(self, arrival: Arrival) -> None:
        """Every block is here: sender and router are told."""
        have = Have(arrival.ticket, arrival.rid, published=arrival.book.published, complete=True)
        for node in (*self._senders(arrival), arrival.router):
            self._site.outbox.send(node, have)

    def gone(self, arrival: Arrival, *, router: bool) -> None:
        """The ticket is over without being complete."""
        have = Have(arrival.ticket, arrival.rid, gone=True)
        for node in (*self._senders(arrival), *((arrival.router,) if router else ())):
            self._site.outbox.send(node, have)

    def ended(self, arrival: Arrival) -> None:
        """Remember whose ticket it was, and report it no more."""
        for kind in ("have", "ask"):
            self._site.timers.clear((kind, arrival.ticket))
        self._ended[arrival.ticket] = arrival.rid
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)

    def stray(self, now: float, node: str, ticket: bytes) -> None:
        """A chunk of an ended or unknown ticket came: it is answered `gone`, now and then."""
        self._site.count("chunks_gone_total")
        key = (node, ticket)
        if now - self._gone.get(key, -GONE_EVERY) < GONE_EVERY:
            return
        self._gone.pop(key, None)
        self._gone[key] = now
        if len(self._gone) > ENDED_KEPT:
            self._gone.popitem(last=False)
        self._site.outbox.send(node, Have(ticket, self._ended.get(ticket, Rid(0, 0)), gone=True))

    def _senders(self, arrival: Arrival) -> list[str]:
        """The known sender, else every node that might be it: an Attach names the target, not the other way
        round.
        """
        if arrival.sender is not None:
            return [arrival.sender]
        return self._site.peers.workers()
