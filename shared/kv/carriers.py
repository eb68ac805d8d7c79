"""Which ticket brings which block, and which tickets wait for it: no block crosses the line twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared.errors import InvariantBroken
from shared.kv.ticket import BlockState, Ticket


class Carriers:
    """Unpublished blocks by hash: one carrier each, and any number of waiting tickets, oldest first."""

    def __init__(self) -> None:
        self._carrier: dict[bytes, Ticket] = {}
        self._waiters: dict[bytes, dict[bytes, Ticket]] = {}

    def carrier(self, hash_: bytes) -> Ticket | None:
        return self._carrier.get(hash_)

    def leading(self, hashes: Sequence[bytes], have: int, *, yields: bool) -> int:
        """How many blocks after the first `have` a new ticket would get from others."""
        count = 0
        while have + count < len(hashes):
            carrier = self._carrier.get(hashes[have + count])
            if carrier is None or (carrier.yields and not yields):
                break
            count += 1
        return count

    def carry(self, hash_: bytes, ticket: Ticket) -> None:
        """Name the ticket that brings a block from now on."""
        self._carrier[hash_] = ticket

    def forget(self, hash_: bytes) -> None:
        """The block is here, or nobody brings it any more."""
        del self._carrier[hash_]

    def wait(self, hash_: bytes, ticket: Ticket) -> None:
        self._waiters.setdefault(hash_, {})[ticket.ticket] = ticket

    def stop_waiting(self, hash_: bytes, ticket: Ticket) -> None:
        waiters = self._waiters[hash_]
        del waiters[ticket.ticket]
        if not waiters:
            del self._waiters[hash_]

    def waiters(self, hash_: bytes) -> Iterator[Ticket]:
        """Those that wait for a block, oldest first."""
        return iter(self._waiters.get(hash_, {}).values())

    def heir(self, hash_: bytes) -> Ticket | None:
        """The waiting ticket that takes a block over: the oldest that does not yield, else the oldest."""
        waiting = list(self.waiters(hash_))
        return next((ticket for ticket in waiting if not ticket.yields), waiting[0] if waiting else None)

    def check(self, tickets: Sequence[Ticket]) -> None:
        """Raise InvariantBroken where the tickets' own blocks tell another story."""
        known = {ticket.ticket: ticket for ticket in tickets}
        carried = awaited = 0
        for ticket in tickets:
            for index in range(ticket.published, ticket.upto):
                hash_ = ticket.hashes[index]
                carrier = self._carrier.get(hash_)
                if ticket.block_state(index) is not BlockState.AWAITED:
                    carried += 1
                    if carrier is not ticket:
                        raise InvariantBroken(f"block {index} of a ticket is to come under another one")
                    continue
                awaited += 1
                if carrier is None or carrier is ticket or known.get(carrier.ticket) is not carrier:
                    raise InvariantBroken(f"block {index} is awaited and comes under no other ticket")
                if carrier.yields and not ticket.yields:
                    raise InvariantBroken(f"block {index} is awaited from a transfer that yields")
                if ticket.ticket not in self._waiters.get(hash_, {}):
                    raise InvariantBroken(f"block {index} is awaited in vain")
        if not all(self._waiters.values()):
            raise InvariantBroken("a block without waiting tickets is remembered")
        if carried != len(self._carrier) or awaited != sum(map(len, self._waiters.values())):
            raise InvariantBroken("a block is carried or awaited for a ticket that does not want it")
