"""One open transfer at its sender: which blocks a ticket wants, which are here, what is sent, what has
landed.

Pure numbers and ranges: the room around it (kv_out) pins blocks, asks the queue and writes messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.wire.messages import Attach, Have, TransferClass

URGENT = (TransferClass.UNCOVERED, TransferClass.COVERED)
"""Classes of transfers that a client waits for."""

Span = tuple[int, int, int]
"""(block of the chain, first byte, last byte + 1)."""


class Transfer:
    """Blocks [have + expected, upto) of a chain on their way to one receiver; [have, upto) are pinned as
    they exist.

    `held` maps an index of the chain to the pinned pool block. `todo` is what has still to be handed to the
    line, in chain order: its head waits where the block does not exist yet.
    """

    def __init__(
        self, attach: Attach, router: str, hashes: list[bytes], block_bytes: int, now: float
    ) -> None:
        self.ticket = attach.ticket
        self.rid = attach.rid
        self.target = attach.target
        self.incarnation = attach.incarnation
        self.router = router
        self.cls = attach.cls
        self.hashes = hashes
        self.have = attach.have
        self.upto = attach.upto
        self.opened_at = now
        self.held: dict[int, int] = {}
        self.published = attach.have
        self.sent_bytes = 0
        self.waits_report = False
        self._block_bytes = block_bytes
        self._wanted = set(range(attach.have + attach.expected, attach.upto))
        self._todo: list[Span] = [(block, 0, block_bytes) for block in sorted(self._wanted)]
        self._head = 0
        self._landed: dict[int, tuple[tuple[int, int], ...]] = {}
        self._left: set[int] = set()  # wanted here too, and sent by another transfer to the same node

    @property
    def urgent(self) -> bool:
        """Whether a client waits for it."""
        return self.cls in URGENT

    @property
    def wanted(self) -> list[int]:
        """Blocks that this transfer brings, landed or not."""
        return sorted(self._wanted)

    @property
    def left(self) -> list[int]:
        """Blocks that another transfer brings in its stead."""
        return sorted(self._left)

    @property
    def total_bytes(self) -> int:
        return len(self._wanted) * self._block_bytes

    @property
    def acked_bytes(self) -> int:
        """Bytes of wanted blocks that the receiver has verified."""
        whole = sum(block < self.published for block in self._wanted)
        parts = sum(
            end - first
            for block, spans in self._landed.items()
            if block in self._wanted and block >= self.published
            for first, end in spans
        )
        return whole * self._block_bytes + parts

    @property
    def unsent_bytes(self) -> int:
        return sum(end - first for _, first, end in self._todo[self._head :])

    @property
    def outstanding(self) -> bool:
        """Whether bytes were handed to the line that nobody has acknowledged."""
        return self.acked_bytes + self.unsent_bytes < self.total_bytes

    @property
    def sendable(self) -> bool:
        """Whether a chunk could be made now."""
        return (
            not self.waits_report and self._head < len(self._todo) and self._todo[self._head][0] in self.held
        )

    @property
    def unresolved(self) -> list[int]:
        """Blocks to be pinned that do not exist here yet."""
        return [block for block in range(max(self.have, self.published), self.upto) if block not in self.held]

    def next_span(self, limit: int) -> Span:
        """The next bytes to send, at most `limit` of one block. Only while `sendable`."""
        block, first, end = self._todo[self._head]
        cut = min(end, first + limit)
        if cut < end:
            self._todo[self._head] = (block, cut, end)
        else:
            self._head += 1
            if self._head > 256:
                del self._todo[: self._head]
                self._head = 0
        self.sent_bytes += cut - first
        return block, first, cut

    def report(self, have: Have) -> list[int]:
        """Take in what has landed; the pool blocks whose pins end by that, in chain order."""
        self.published = max(self.published, min(have.published, self.upto))
        landed: dict[int, tuple[tuple[int, int], ...]] = {}
        for block, first, end in have.ranges:
            landed[block] = (*landed.get(block, ()), (first, end))
        self._landed = landed
        done = [block for block in sorted(self.held) if self.has_landed(block)]
        if self._head:
            del self._todo[: self._head]
            self._head = 0
        self._todo = [span for span in self._todo if not self.has_landed(span[0])]
        return [self.held.pop(block) for block in done]

    def want(self, needs: Iterable[tuple[int, int]]) -> set[int]:
        """Blocks to send that were left out or were damaged: all of each that has not landed. Which these
        are.
        """
        again: set[int] = set()
        for first, end in needs:
            again.update(range(max(first, self.have, self.published), min(end, self.upto)))
        if again:
            self._wanted |= again
            self._left -= again
            rest = [span for span in self._todo[self._head :] if span[0] not in again]
            self._schedule(rest + [span for block in again for span in self._gaps(block)])
        return again

    def _schedule(self, spans: Iterable[Span]) -> None:
        self._todo = sorted(spans)
        self._head = 0

    def has_sent(self, block: int) -> bool:
        """Whether nothing of a block is still to be handed to the line."""
        return all(span[0] != block for span in self._todo[self._head :])

    def skip(self, block: int) -> None:
        """The block is on its way already: it is sent again only where that is asked for."""
        self._schedule(span for span in self._todo[self._head :] if span[0] != block)

    def leave(self, block: int) -> None:
        """Another transfer to the same node sends the block from now on."""
        if block in self._wanted and not self.has_landed(block):
            self._wanted.discard(block)
            self._left.add(block)
            self.skip(block)

    def take_back(self, block: int) -> None:
        """The other transfer has ended without it."""
        self._left.discard(block)
        self._wanted.add(block)
        self._schedule([*self._todo[self._head :], *self._gaps(block)])

    def waits_for(self) -> list[int]:
        """Blocks that the receiver gets under other tickets."""
        blocks = range(max(self.have, self.published), self.upto)
        return [block for block in blocks if block not in self._wanted and not self.has_landed(block)]

    def rewind(self) -> None:
        """After a break of the connection: everything wanted that has not landed is to be sent again."""
        self.waits_report = False
        self._schedule(
            span for block in self._wanted if block >= self.published for span in self._gaps(block)
        )

    def shorten(self, upto: int) -> list[int]:
        """Forget the blocks from `upto` on; the pool blocks whose pins end by that."""
        self.upto = max(self.have, min(self.upto, upto))
        self._wanted = {block for block in self._wanted if block < self.upto}
        self._left = {block for block in self._left if block < self.upto}
        del self._todo[: self._head]
        self._head = 0
        self._todo = [span for span in self._todo if span[0] < self.upto]
        return [self.held.pop(block) for block in sorted(self.held) if block >= self.upto]

    def has_landed(self, block: int) -> bool:
        """Whether the receiver has all of a block."""
        return block < self.published or self._landed.get(block) == ((0, self._block_bytes),)

    def _gaps(self, block: int) -> list[Span]:
        """The bytes of a block that have not landed."""
        gaps: list[Span] = []
        at = 0
        for first, end in sorted(self._landed.get(block, ())):
            if first > at:
                gaps.append((block, at, first))
            at = max(at, end)
        if at < self._block_bytes:
            gaps.append((block, at, self._block_bytes))
        return gaps
