"""Alignments: transfers that outlive their request, so that main decode's cache keeps level with P's (I2).

They are bounded in time and in blocks, and go first when blocks are needed. Every one ends as done or as
dropped, and is counted as such. Whether it is sent or received here, its owner room ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.worker.worker_site import Site


class Alignments:
    """The alignments of one direction of one worker, by ticket."""

    def __init__(
        self,
        site: Site,
        timer: str,
        size: Callable[[bytes], int],
        total: Callable[[Iterable[bytes]], int],
        drop: Callable[[bytes], None],
    ) -> None:
        """`size`: blocks that one alignment holds; `total`: distinct blocks that several hold. `drop` ends
        one's transfer. `timer` names its deadlines.
        """
        self._site = site
        self._timer = timer
        self._size = size
        self._total = total
        self._drop = drop
        self._most = int(site.policy.align_fraction * site.pool.total)
        self._open: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, ticket: bytes) -> bool:
        return ticket in self._open

    @property
    def blocks(self) -> int:
        """Blocks that all of them hold."""
        return self._total(self._open)

    def add(self, now: float, ticket: bytes) -> None:
        """A transfer's request has ended; it goes on as an alignment, or is dropped where that would be too
        much.
        """
        if ticket in self._open:
            return
        self._open[ticket] = None
        self._site.count("alignments_total")
        if self.blocks > self._most or self._site.draining:
            self.drop(ticket)
            return
        self._site.timers.set((self._timer, ticket), now + self._site.policy.align_most)

    def done(self, ticket: bytes) -> None:
        """Its transfer is complete."""
        if self._forget(ticket):
            self._site.count("alignments_done_total")

    def lost(self, ticket: bytes) -> None:
        """Its transfer has ended otherwise."""
        if self._forget(ticket):
            self._site.count("alignments_dropped_total")

    def drop(self, ticket: bytes) -> None:
        """End it: its time is over or its blocks are needed."""
        if self._forget(ticket):
            self._site.count("alignments_dropped_total")
            self._drop(ticket)

    def drop_all(self) -> None:
        """End every one of them."""
        for ticket in list(self._open):
            self.drop(ticket)

    def make_room(self, blocks: int) -> None:
        """Drop alignments, the largest first, until `blocks` more are to be had or none is left."""
        pool = self._site.pool
        wanted = pool.available + blocks
        while self._open and pool.available < wanted:
            self.drop(max(self._open, key=self._size))

    def _forget(self, ticket: bytes) -> bool:
        if ticket not in self._open:
            return False
        del self._open[ticket]
        self._site.timers.clear((self._timer, ticket))
        return True
