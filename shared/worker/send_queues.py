"""One send queue per destination: which transfer the next chunk comes from, and what waits for each line.

Keeps the queues in step with the transfers; opens and ends none itself.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import NamedTuple

from shared.policy.priority import CLASSES, SendQueue
from shared.wire.messages import TransferClass
from shared.worker.transfer import Transfer
from shared.worker.worker_site import Site


class LineLoad(NamedTuple):
    """Transfers that go over one line."""

    unsent: int  # bytes promised and not acknowledged
    smallest: int  # the least that any transfer with bytes to send has left; 0: there is none
    oldest_age: float  # seconds, of those
    by_class: tuple[int, ...]  # `unsent` by TransferClass

    def plus(self, other: LineLoad | None) -> LineLoad:
        """Both together."""
        if other is None:
            return self
        return LineLoad(
            self.unsent + other.unsent,
            min(self.smallest, other.smallest) or max(self.smallest, other.smallest),
            max(self.oldest_age, other.oldest_age),
            tuple(one + two for one, two in zip(self.by_class, other.by_class, strict=True)),
        )


NOTHING = LineLoad(0, 0, 0.0, (0,) * CLASSES)
"""A line that nothing waits for."""


@cache
def _sent_bytes(line: str, cls: int) -> str:
    """The counter of what a class has sent over a line; each chunk adds to it."""
    return f'line_sent_bytes_total{{line="{line}",class="{TransferClass(cls).name.lower()}"}}'


class SendQueues:
    """The queues of one worker by node."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._queues: dict[str, SendQueue] = {}
        self._lines: dict[str, str] = {}  # node -> name of the line to it, while it has a queue
        self.sent: defaultdict[str, int] = defaultdict(int)
        """Bytes handed to each line so far, by its name."""
        self.changes = 0
        """Transfers that have begun or ended so far."""

    def resize(self, transfer: Transfer) -> None:
        """Enter a transfer, or tell its queue what it has still to bring, and in which class."""
        queue = self._queues.get(transfer.target)
        if queue is None:
            queue = self._queues[transfer.target] = SendQueue(self._site.line)
            self._lines[transfer.target] = self._site.line_of(transfer.target)
        self.changes += transfer.ticket not in queue
        queue.open(transfer.ticket, transfer.cls, transfer.total_bytes, transfer.opened_at)
        queue.acked(transfer.ticket, transfer.acked_bytes)

    def stir(self, transfer: Transfer) -> None:
        """Tell the queue whether the transfer has bytes now, and the transport where it has."""
        sendable = transfer.sendable
        self._queues[transfer.target].set_ready(transfer.ticket, sendable)
        if sendable:
            self._site.outbox.wake(transfer.target)

    def met(self, node: str) -> None:
        """A session with the node has opened: only now it is known which line leads there."""
        if node in self._lines:
            self._lines[node] = self._site.line_of(node)

    def leave(self, transfer: Transfer) -> None:
        """The transfer has ended."""
        queue = self._queues[transfer.target]
        queue.close(transfer.ticket)
        self.changes += 1
        if not len(queue):
            del self._queues[transfer.target], self._lines[transfer.target]

    def next(self, node: str) -> bytes | None:
        """Ticket of the transfer that the next chunk for a node should come from."""
        queue = self._queues.get(node)
        if queue is None:
            return None
        queue.serve_oldest(self._site.line_oldest(self._lines[node]))
        return queue.next()

    def charge(self, node: str, ticket: bytes, size: int) -> None:
        """Bytes of the transfer that `next` named were taken."""
        queue, line = self._queues[node], self._lines[node]
        queue.sent(ticket, size)
        self.sent[line] += size
        self._site.count(_sent_bytes(line, queue[ticket].cls), size)

    def lines(self, now: float) -> dict[str, LineLoad]:
        """What waits for each line."""
        loads: dict[str, LineLoad] = {}
        for node, queue in self._queues.items():
            by_class = queue.by_class
            load = LineLoad(sum(by_class), queue.smallest, queue.oldest_age(now), by_class)
            name = self._lines[node]
            loads[name] = load.plus(loads.get(name))
        return loads
