"""Which transfer the next chunk to a destination belongs to (pure; no clock, no bytes).

Four classes, most urgent first: uncovered, covered, alignment, parked. Uncovered and covered share the
rate by weight, where uncovered may take a burst of what it let pass while it was idle; each of the others is
served only while all above it have nothing to send. Within a class half of the bytes go to the transfer that
was opened first, half to the one with the least left, so that short ones pass and the largest cannot starve.
No score grows with time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from shared.policy.config import LinePolicy

CLASSES = 4
UNCOVERED, COVERED, ALIGNMENT, PARKED = range(CLASSES)

BURST = 4 << 20
"""Bytes that the uncovered class may take at once of what it let pass while it was idle; over any longer time
it has its weight of the rate and no more."""


@dataclass(slots=True)
class Transfer:
    """One open transfer: what it is promised, what the receiver has, and whether bytes wait to be sent."""

    ticket: bytes
    cls: int
    total: int  # bytes promised
    opened: float
    order: int
    acked: int = 0
    ready: bool = False
    version: int = 0  # of the entry in the heap of remaining bytes that counts

    @property
    def remaining(self) -> int:
        return max(0, self.total - self.acked)


@dataclass(slots=True)
class _Lanes:
    """One class: its ready transfers by age and by remaining bytes (heaps; dead entries go lazily)."""

    oldest: list[tuple[float, int, bytes]] = field(default_factory=list)
    shortest: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    ready: int = 0
    served: float = 0.0  # bytes by weight, compared between the classes that share
    lead: float = 0.0  # bytes that the oldest lane is ahead of its share; negative: behind


class SendQueue:
    """The open transfers to one destination. Bytes are charged with `sent`; `next` only looks."""

    def __init__(self, policy: LinePolicy) -> None:
        self._own_share = self._oldest_share = min(1.0, max(0.0, policy.oldest_share))
        self._weight = (policy.uncovered_to_covered, 1.0)
        self._transfers: dict[bytes, Transfer] = {}
        self._classes = [_Lanes() for _ in range(CLASSES)]
        self._orders = 0
        self._lane = 0  # of the last pick: 0 oldest, 1 shortest

    def __len__(self) -> int:
        return len(self._transfers)

    def __contains__(self, ticket: bytes) -> bool:
        return ticket in self._transfers

    def __getitem__(self, ticket: bytes) -> Transfer:
        return self._transfers[ticket]

    def open(self, ticket: bytes, cls: int, total: int, now: float) -> Transfer:
        """A transfer of `total` bytes begins; it has nothing to send until `set_ready`. Again with the same
        ticket: a new class and total, its age stays."""
        known = self._transfers.get(ticket)
        if known is not None:
            known.total = total
            self.set_class(ticket, cls)
            self._resize(known)
            return known
        self._orders += 1
        made = self._transfers[ticket] = Transfer(ticket, int(cls), total, now, self._orders)
        return made

    def close(self, ticket: bytes) -> None:
        """The transfer has ended by any road; unknown tickets are let pass."""
        known = self._transfers.pop(ticket, None)
        if known is not None and known.ready:
            self._classes[known.cls].ready -= 1

    def set_class(self, ticket: bytes, cls: int) -> None:
        transfer = self._transfers[ticket]
        if transfer.cls == cls:
            return
        was_ready = transfer.ready
        self.set_ready(ticket, False)
        transfer.cls = int(cls)
        self.set_ready(ticket, was_ready)

    def set_ready(self, ticket: bytes, ready: bool) -> None:
        """Whether bytes of this transfer wait to be sent now."""
        transfer = self._transfers[ticket]
        if transfer.ready == ready:
            return
        transfer.ready = ready
        lanes = self._classes[transfer.cls]
        if not ready:
            lanes.ready -= 1
            transfer.version += 1
            return
        if lanes.ready == 0:
            self._catch_up(transfer.cls)
        lanes.ready += 1
        heapq.heappush(lanes.oldest, (transfer.opened, transfer.order, ticket))
        self._resize(transfer)

    def serve_oldest(self, part: float | None) -> None:
        """Part of each class's bytes that goes to its oldest transfer from now on; None: as configured."""
        self._oldest_share = self._own_share if part is None else part

    def acked(self, ticket: bytes, total: int) -> None:
        """The receiver has `total` bytes of this transfer (a total, not an increase)."""
        transfer = self._transfers[ticket]
        if total != transfer.acked:
            transfer.acked = total
            self._resize(transfer)

    def next(self) -> bytes | None:
        """Ticket of the transfer that the next chunk should come from; None where nothing waits."""
        cls = self._class()
        if cls is None:
            return None
        lanes = self._classes[cls]
        self._lane = 0 if lanes.lead <= 0 and self._oldest_share else 1
        return self._shortest(cls) if self._lane else self._oldest(cls)

    def sent(self, ticket: bytes, size: int) -> None:
        """`size` bytes of the transfer that `next` named were taken: charge its class and lane."""
        transfer = self._transfers[ticket]
        lanes = self._classes[transfer.cls]
        if transfer.cls < len(self._weight):
            lanes.served += size / self._weight[transfer.cls]
        share = self._oldest_share
        lanes.lead += size * (1 - share) if self._lane == 0 else -size * share

    # --- what the sender reports ---

    @property
    def remaining(self) -> int:
        """Bytes promised and not acknowledged, of all transfers."""
        return sum(transfer.remaining for transfer in self._transfers.values())

    @property
    def by_class(self) -> tuple[int, ...]:
        """The same for each class, most urgent first."""
        sums = [0] * CLASSES
        for transfer in self._transfers.values():
            sums[transfer.cls] += transfer.remaining
        return tuple(sums)

    @property
    def smallest(self) -> int:
        """The least that any transfer with bytes to send has left; 0 where there is none. One that was sent
        and waits for its acknowledgement has no use for the line.
        """
        return min((each.remaining for each in self._transfers.values() if each.ready), default=0)

    def oldest_age(self, now: float) -> float:
        """Seconds since the oldest transfer with bytes to send was opened."""
        return max((now - each.opened for each in self._transfers.values() if each.ready), default=0.0)

    def tickets(self) -> list[bytes]:
        return list(self._transfers)

    # --- inside ---

    def _class(self) -> int | None:
        first, second = self._classes[UNCOVERED], self._classes[COVERED]
        if first.ready and second.ready:
            return UNCOVERED if first.served <= second.served else COVERED
        for cls, lanes in enumerate(self._classes):
            if lanes.ready:
                return cls
        return None

    def _catch_up(self, cls: int) -> None:
        """A class that was idle has no claim to the bytes that it let pass, nor its lanes to old leads. But
        the most urgent may take a burst of them: else the rare transfer that a client waits for would share
        from its first byte on with one that has had the line all the time."""
        lanes = self._classes[cls]
        lanes.lead = 0.0
        lanes.oldest.clear()
        lanes.shortest.clear()
        if cls > COVERED:
            return
        other = self._classes[COVERED if cls == UNCOVERED else UNCOVERED]
        if other.ready:
            claim = BURST / self._weight[UNCOVERED] if cls == UNCOVERED else 0.0
            lanes.served = max(lanes.served, other.served - claim)
        else:
            lanes.served = other.served = 0.0

    def _resize(self, transfer: Transfer) -> None:
        if not transfer.ready:
            return
        lanes = self._classes[transfer.cls]
        transfer.version += 1
        remaining = max(0, transfer.total - transfer.acked)
        heapq.heappush(lanes.shortest, (remaining, transfer.order, transfer.version, transfer.ticket))
        if len(lanes.shortest) > 64 + 4 * lanes.ready:
            living = [t for t in self._transfers.values() if t.ready and t.cls == transfer.cls]
            lanes.shortest = [_by_remaining(t) for t in living]
            lanes.oldest = [(t.opened, t.order, t.ticket) for t in living]
            heapq.heapify(lanes.shortest)
            heapq.heapify(lanes.oldest)

    def _oldest(self, cls: int) -> bytes:
        heap = self._classes[cls].oldest
        while True:
            _, order, ticket = heap[0]
            transfer = self._transfers.get(ticket)
            if transfer and transfer.order == order and transfer.ready and transfer.cls == cls:
                return ticket
            heapq.heappop(heap)

    def _shortest(self, cls: int) -> bytes:
        heap = self._classes[cls].shortest
        while True:
            _, order, version, ticket = heap[0]
            transfer = self._transfers.get(ticket)
            if transfer and (transfer.order, transfer.version) == (order, version) and transfer.cls == cls:
                return ticket
            heapq.heappop(heap)


def _by_remaining(transfer: Transfer) -> tuple[int, int, int, bytes]:
    return (transfer.remaining, transfer.order, transfer.version, transfer.ticket)
