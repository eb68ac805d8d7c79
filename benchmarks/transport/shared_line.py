"""Our discipline in virtual time: a `SendQueue` at each sender, one line dealt among them by `line_share`.

The line is exact in bytes and seconds; only the chunks are coarser than real ones where that changes no
decision: a chunk ends early, at a multiple of a real one, when a transfer comes to its sender.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.transport.agentic import Arrival
from shared.policy.config import LinePolicy
from shared.policy.line_share import SenderReport, ShareHeld, shares
from shared.policy.priority import UNCOVERED, SendQueue

CHUNK = 256 << 10
TTL = 1.0
"""Seconds that a share counts."""
_FINE = 8
"""Chunks that the shortest transfer is cut into, at least, while real ones would be shorter."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """How a router deals the line: at most `every` seconds after something has changed, from reports that are
    `late` seconds old when the shares made of them count."""

    every: float = 0.05
    late: float = 0.02
    renew: float = 0.25  # though nothing has changed


class _Sender:
    """One sender's queue and the chunk that it has on the line until `end`."""

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

    def add(self, ticket: bytes, size: int, now: float) -> None:
        self.queue.open(ticket, UNCOVERED, size, now)
        self.queue.set_ready(ticket, True)
        self._least = min(self._least, size) if self.left else size
        self.left[ticket] = size
        self.opened[ticket] = now
        self._waiting += size
        if not self.ticket:
            self.pick(now)
            return
        unsent = (self.end - now) * self.rate
        gone = math.ceil((self._size - unsent) / CHUNK) * CHUNK
        if gone < self._size:  # the real chunk that is on its way is the last before this transfer counts
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
        return SenderReport(self._waiting, self._least, now - next(iter(self.opened.values())))


class SharedLine:
    """One line of `rate` bytes/s and its senders; time runs from event to event."""

    def __init__(self, rate: float, senders: int, dealing: Dealing | None = None) -> None:
        self._rate = rate
        self._dealing = dealing or Dealing()
        self._senders = [_Sender(at) for at in range(senders)]
        self._active: list[_Sender] = []
        self._now = 0.0
        self._deal_at = math.inf
        self._dealt_at = -math.inf
        self._seq = 0
        self._grants: deque[tuple[float, dict[str, float]]] = deque()  # shares on their way to the senders

    def serve(self, arrivals: Sequence[Arrival], place: Sequence[int]) -> list[float]:
        """Seconds from arrival to the last byte of each. `place[session]`: the sender of a session."""
        took = [0.0] * len(arrivals)
        coming = 0
        while coming < len(arrivals) or self._active:
            arrival = arrivals[coming].at if coming < len(arrivals) else math.inf
            due = self._grants[0][0] if self._grants else math.inf
            first, chunk_end = None, math.inf
            for sender in self._active:
                if sender.end < chunk_end:
                    first, chunk_end = sender, sender.end
            self._now = now = min(arrival, chunk_end, self._deal_at, due)
            if now == chunk_end and first is not None:
                at = int.from_bytes(first.ticket, "big")
                if first.end_chunk(now, arrivals[at].size):
                    took[at] = now - arrivals[at].at
                    self._ended(first)
            elif now == arrival:
                one = arrivals[coming]
                self._arrive(self._senders[place[one.session]], coming.to_bytes(4, "big"), one.size)
                coming += 1
            elif now == due:
                self._obey(self._grants.popleft()[1])
            else:
                self._deal()
        return took

    def _arrive(self, sender: _Sender, ticket: bytes, size: int) -> None:
        was_idle = not sender.left
        sender.add(ticket, size, self._now)
        if was_idle:
            self._active.append(sender)
            self._set_rates()
        self._deal_soon()

    def _ended(self, sender: _Sender) -> None:
        if not sender.ticket:
            self._active.remove(sender)
            self._set_rates()
        self._deal_soon()

    def _set_rates(self) -> None:
        """What senders may use, and no more together than the line carries."""
        allowed = [sender.share.rate(self._now, self._rate) for sender in self._active]
        part = min(1.0, self._rate / max(sum(allowed), 1.0))
        for sender, rate in zip(self._active, allowed, strict=True):
            sender.set_rate(self._now, rate * part)

    # --- the router ---

    def _deal_soon(self) -> None:
        if len(self._senders) > 1:
            self._deal_at = min(self._deal_at, max(self._now, self._dealt_at + self._dealing.every))

    def _deal(self) -> None:
        self._dealt_at = self._now
        self._deal_at = math.inf
        if not self._active:
            return
        reports = {sender.name: sender.report(self._now) for sender in self._active}
        rates = shares(self._rate, reports, horizon=self._dealing.every + self._dealing.late)
        self._grants.append((self._now + self._dealing.late, rates))
        self._deal_at = self._now + self._dealing.renew

    def _obey(self, rates: dict[str, float]) -> None:
        for name, rate in rates.items():
            self._seq += 1
            self._senders[int(name)].share.grant(self._now, "r", self._seq, rate, TTL, len(rates))
        self._set_rates()
