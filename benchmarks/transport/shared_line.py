"""Our discipline in virtual time: a `SendQueue` at each sender, one line dealt among them by `line_share`.

Senders report when the worker's reports would leave (`shared.worker.reports`), the router deals when its
`Sharing` would (`services.router.sharing`), and both messages take their time: the constants are the shipped
ones. The line is exact in bytes and seconds; only the chunks are coarser than real ones where that changes
no decision: a chunk ends early, at a multiple of a real one, when a transfer comes to its sender or its share
changes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.transport.agentic import Arrival
from services.router.sharing import EVERY, HORIZON, RENEW
from shared.policy.config import LinePolicy, RouterPolicy
from shared.policy.line_share import SenderReport, ShareHeld, shares
from shared.policy.priority import UNCOVERED, SendQueue
from shared.worker.reports import APART, LINE_APART

CHUNK = 256 << 10
_FINE = 8
"""Chunks that the shortest transfer is cut into, at least, while real ones would be shorter."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """When reports leave and shares are dealt, in seconds; `way`: of one message."""

    line_apart: float = LINE_APART  # between two reports, after a transfer has begun or ended
    apart: float = APART  # else
    every: float = EVERY
    renew: float = RENEW
    horizon: float = HORIZON
    way: float = 0.01


class _Sender:
    """One sender's queue, the chunk that it has on the line until `end`, and its reports."""

    def __init__(self, number: int) -> None:
        self.queue = SendQueue(LinePolicy())
        self.name = str(number)
        self.left: dict[bytes, int] = {}  # the oldest first
        self.opened: dict[bytes, float] = {}
        self.share = ShareHeld()
        self.rate = math.inf
        self.ticket = b""
        self.end = math.inf
        self._size = 0
        self._waiting = 0
        self._least = 0  # that any transfer here has left
        self.reported_at = -math.inf
        self.report_at = math.inf  # when the next one leaves

    def add(self, ticket: bytes, size: int, now: float) -> None:
        self.queue.open(ticket, UNCOVERED, size, now)
        self.queue.set_ready(ticket, True)
        self._least = min(self._least, size) if self.left else size
        self.left[ticket] = size
        self.opened[ticket] = now
        self._waiting += size
        if self.ticket:
            self.cut_chunk(now)
        else:
            self.pick(now)

    def cut_chunk(self, now: float) -> None:
        """The real chunk that is on its way is the last before a new decision counts."""
        if not self.ticket or self.rate == math.inf:
            return
        unsent = (self.end - now) * self.rate
        gone = max(CHUNK, math.ceil((self._size - unsent) / CHUNK) * CHUNK)
        if gone < self._size:
            self.end = now + max(0.0, unsent - self._size + gone) / self.rate
            self._size = gone

    def pick(self, now: float) -> None:
        """The next chunk."""
        ticket = self.queue.next()
        if ticket is None:
            self.ticket, self.end = b"", math.inf
            return
        self.ticket = ticket
        self._size = min(self.left[ticket], max(CHUNK, self._least // _FINE))
        self.end = now + self._size / self.rate

    def set_rate(self, now: float, rate: float) -> None:
        if rate != self.rate:
            if self.ticket:
                unsent = self._size if self.rate == math.inf else (self.end - now) * self.rate
                self.end = now + unsent / rate
            self.rate = rate

    def end_chunk(self, now: float, total: int) -> bool:
        """The chunk has arrived; whether it was the last of its transfer, of `total` bytes."""
        ticket, queue = self.ticket, self.queue
        queue.sent(ticket, self._size)
        self._waiting -= self._size
        left = self.left[ticket] - self._size
        if left > 0:
            self.left[ticket] = left
            self._least = min(self._least, left)
            queue.acked(ticket, total - left)
        else:
            del self.left[ticket], self.opened[ticket]
            queue.close(ticket)
            self._least = min(self.left.values(), default=0)
        self.pick(now)
        return left <= 0

    def report(self, now: float) -> SenderReport:
        age = now - next(iter(self.opened.values())) if self.opened else 0.0
        return SenderReport(self._waiting, self._least, age)


class SharedLine:
    """One line of `rate` bytes/s and its senders; time runs from event to event."""

    def __init__(self, rate: float, senders: int, dealing: Dealing | None = None) -> None:
        self._rate = rate
        self._dealing = dealing or Dealing()
        self._ttl = RouterPolicy().share_ttl
        self._senders = [_Sender(at) for at in range(senders)]
        self._active: list[_Sender] = []
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._heard: dict[str, SenderReport] = {}  # the last report of each sender with a backlog
        self._dealt_at = -math.inf
        self._deal_at = math.inf
        self._seq = 0
        self.messages = 0
        """Reports and shares so far."""

    def serve(self, arrivals: Sequence[Arrival], place: Sequence[int]) -> list[float]:
        """Seconds from arrival to the last byte of each. `place[session]`: the sender of a session."""
        took = [0.0] * len(arrivals)
        coming = 0
        while coming < len(arrivals) or self._active:
            arrival = arrivals[coming].at if coming < len(arrivals) else math.inf
            due = self._events[0][0] if self._events else math.inf
            first, chunk_end = None, math.inf
            for sender in self._active:
                if sender.end < chunk_end:
                    first, chunk_end = sender, sender.end
            self._now = now = min(arrival, chunk_end, due)
            if now == chunk_end and first is not None:
                at = int.from_bytes(first.ticket, "big")
                if first.end_chunk(now, arrivals[at].size):
                    took[at] = now - arrivals[at].at
                    self._ended(first)
            elif now == arrival:
                one = arrivals[coming]
                self._arrive(self._senders[place[one.session]], coming.to_bytes(4, "big"), one.size)
                coming += 1
            else:
                heapq.heappop(self._events)[2]()
        return took

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def _arrive(self, sender: _Sender, ticket: bytes, size: int) -> None:
        was_idle = not sender.left
        sender.add(ticket, size, self._now)
        if was_idle:
            self._active.append(sender)
            self._set_rates()
        self._report_soon(sender, self._dealing.line_apart)

    def _ended(self, sender: _Sender) -> None:
        if not sender.ticket:
            self._active.remove(sender)
            self._set_rates()
        self._report_soon(sender, self._dealing.line_apart)

    def _set_rates(self) -> None:
        """What senders may use, and no more together than the line carries."""
        allowed = [sender.share.rate(self._now, self._rate) for sender in self._active]
        part = min(1.0, self._rate / max(sum(allowed), 1.0))
        for sender, rate in zip(self._active, allowed, strict=True):
            sender.queue.serve_oldest(sender.share.oldest(self._now))
            sender.set_rate(self._now, max(1.0, rate * part))

    # --- reports ---

    def _report_soon(self, sender: _Sender, apart: float) -> None:
        when = max(self._now, sender.reported_at + apart)
        if len(self._senders) > 1 and when < sender.report_at:
            sender.report_at = when
            self._at(when, lambda: self._report(sender, when))

    def _report(self, sender: _Sender, when: float) -> None:
        if sender.report_at != when:
            return  # it has left sooner
        sender.reported_at, sender.report_at = self._now, math.inf
        report = sender.report(self._now)
        self.messages += 1
        self._at(self._now + self._dealing.way, lambda: self._hear(sender.name, report))
        if sender.left:
            self._report_soon(sender, self._dealing.apart)

    # --- the router ---

    def _hear(self, name: str, report: SenderReport) -> None:
        if report.unsent:
            self._heard[name] = report
        else:
            self._heard.pop(name, None)
        self._deal_soon(max(self._now, self._dealt_at + self._dealing.every))

    def _deal_soon(self, when: float) -> None:
        if when < self._deal_at:
            self._deal_at = when
            self._at(when, lambda: self._deal(when))

    def _deal(self, when: float) -> None:
        if self._deal_at != when:
            return  # it was dealt sooner
        self._dealt_at, self._deal_at = self._now, math.inf
        dealt = shares(self._rate, self._heard, horizon=self._dealing.horizon)
        if not dealt:
            return
        self.messages += len(dealt)
        grants = {name: (share.rate, share.oldest_part) for name, share in dealt.items()}
        self._at(self._now + self._dealing.way, lambda: self._obey(grants))
        self._deal_soon(self._now + self._dealing.renew)

    def _obey(self, grants: dict[str, tuple[float, float]]) -> None:
        for name, (rate, oldest) in grants.items():
            self._seq += 1
            sender = self._senders[int(name)]
            sender.cut_chunk(self._now)
            sender.share.grant(self._now, "r", self._seq, rate, self._ttl, len(grants), oldest)
        self._set_rates()
