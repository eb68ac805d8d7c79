"""One open transfer at its sender: which blocks a ticket wants, which are here, what is sent, what has
landed.

Pure numbers and ranges: the room around it (kv_out) pins blocks, asks the queue and writes messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from shared.wire.messages import Attach, Have, TransferClass

URGENT = (TransferClass.UNCOVERED, TransferClass.COVERED)
"""Classes of transfers that a client waits for."""

Span = tuple[int, int, int]
"""(block of the chain, first byte, last byte + 1)."""


class Transfer:
    """Blocks [have + expected, upto) of a chain on their way to one receiver; [have, upto) are pinned as they
    exist.

    `held` maps an index of the chain to the pinned pool block. What has still to be handed to the line leaves
    in chain order: the first of it waits where its block does not exist yet.
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
        self.trace = attach.trace
        self.held: dict[int, int] = {}
        self.published = attach.have
        self.waits_report = False
        self._block_bytes = block_bytes
        self._wanted = set(range(attach.have + attach.expected, attach.upto))
        self._left: set[int] = set()  # wanted here too, and sent by another transfer to the same node
        self._landed: dict[int, tuple[tuple[int, int], ...]] = {}
        self._todo: dict[int, list[tuple[int, int]]] = {}  # by block: ranges to be handed to the line
        self._order: list[int] = []  # a heap of the blocks in `todo`, with some that are there no more
        self._unsent = 0
        self._acked: int | None = None  # None: to be counted anew
        self._schedule(self._wanted)

    # --- numbers --------------------------------------------------------------------------------------------

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
        """Bytes of all blocks that this transfer brings."""
        return len(self._wanted) * self._block_bytes

    @property
    def acked_bytes(self) -> int:
        """Those of them that the receiver has verified."""
        if self._acked is None:
            published, wanted = self.published, self._wanted
            whole = len([block for block in wanted if block < published])
            self._acked = whole * self._block_bytes + sum(
                end - first
                for block, spans in self._landed.items()
                if block >= published and block in wanted
                for first, end in spans
            )
        return self._acked

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were not handed to the line yet, or are to be sent again."""
        return self._unsent

    @property
    def outstanding(self) -> bool:
        """Whether bytes were handed to the line that nobody has acknowledged."""
        return self.acked_bytes + self._unsent < self.total_bytes

    @property
    def sendable(self) -> bool:
        """Whether a chunk could be made now."""
        return not self.waits_report and self._next() in self.held

    @property
    def unresolved(self) -> list[int]:
        """Blocks to be pinned that do not exist here yet."""
        return [block for block in range(max(self.have, self.published), self.upto) if block not in self.held]

    def waits_for(self) -> list[int]:
        """Blocks that the receiver gets under other tickets."""
        blocks = range(max(self.have, self.published), self.upto)
        return [block for block in blocks if block not in self._wanted and not self.has_landed(block)]

    def has_sent(self, block: int) -> bool:
        """Whether nothing of a block is still to be handed to the line."""
        return block not in self._todo

    def has_landed(self, block: int) -> bool:
        """Whether the receiver has all of a block."""
        return block < self.published or self._landed.get(block) == ((0, self._block_bytes),)

    # --- what happens ---------------------------------------------------------------------------------------

    def next_span(self, limit: int) -> Span:
        """The next bytes to send, at most `limit` of one block. Only while `sendable`."""
        block = self._next()
        spans = self._todo[block]
        first, end = spans[0]
        cut = min(end, first + limit)
        if cut < end:
            spans[0] = (cut, end)
        else:
            del spans[0]
            if not spans:
                del self._todo[block]
        self._unsent -= cut - first
        return block, first, cut

    def report(self, have: Have) -> list[int]:
        """Take in what has landed; the pool blocks whose pins end by that, in chain order."""
        self.published = max(self.published, min(have.published, self.upto))
        landed: dict[int, tuple[tuple[int, int], ...]] = {}
        for block, first, end in have.ranges:
            if first < end <= self._block_bytes:
                landed[block] = (*landed.get(block, ()), (first, end))
        self._landed = landed
        self._acked = None
        published, all_of_it = self.published, ((0, self._block_bytes),)
        ahead = {block for block, spans in landed.items() if spans == all_of_it}
        for block in [block for block in self._todo if block < published or block in ahead]:
            self.skip(block)
        done = sorted(block for block in self.held if block < published or block in ahead)
        return [self.held.pop(block) for block in done]

    def want(self, needs: Iterable[tuple[int, int]]) -> set[int]:
        """Blocks to send that were left out or were damaged: all of each that has not landed. Which these
        are.
        """
        again: set[int] = set()
        for first, end in needs:
            again.update(range(max(first, self.have, self.published), min(end, self.upto)))
        self._wanted |= again
        self._left -= again
        self._acked = None
        self._schedule(again)
        return again

    def rewind(self) -> None:
        """After a break of the connection: everything wanted that has not landed is to be sent again."""
        self.waits_report = False
        self._schedule(self._wanted)

    def skip(self, block: int) -> None:
        """The block is on its way already: it is sent again only where that is asked for."""
        self._unsent -= sum(end - first for first, end in self._todo.pop(block, ()))

    def leave(self, block: int) -> None:
        """Another transfer to the same node sends the block from now on."""
        if block in self._wanted and not self.has_landed(block):
            self._wanted.discard(block)
            self._left.add(block)
            self._acked = None
            self.skip(block)

    def take_back(self, block: int) -> None:
        """The other transfer has ended without it."""
        self._left.discard(block)
        self._wanted.add(block)
        self._acked = None
        self._schedule((block,))

    def shorten(self, upto: int) -> list[int]:
        """Forget the blocks from `upto` on; the pool blocks whose pins end by that."""
        self.upto = max(self.have, min(self.upto, upto))
        for block in [block for block in self._todo if block >= self.upto]:
            self.skip(block)
        self._wanted = {block for block in self._wanted if block < self.upto}
        self._left = {block for block in self._left if block < self.upto}
        self._acked = None
        return [self.held.pop(block) for block in sorted(self.held) if block >= self.upto]

    # --- inside ---------------------------------------------------------------------------------------------

    def _schedule(self, blocks: Iterable[int]) -> None:
        """What has not landed of these blocks is to be handed to the line."""
        for block in blocks:
            self.skip(block)
            if block >= self.published and (gaps := self._gaps(block)):
                self._todo[block] = gaps
                self._unsent += sum(end - first for first, end in gaps)
                heapq.heappush(self._order, block)

    def _next(self) -> int:
        """The first block with bytes to be sent; -1: none."""
        while self._order:
            if self._order[0] in self._todo:
                return self._order[0]
            heapq.heappop(self._order)
        return -1

    def _gaps(self, block: int) -> list[tuple[int, int]]:
        """The bytes of a block that have not landed."""
        gaps: list[tuple[int, int]] = []
        at = 0
        for first, end in sorted(self._landed.get(block, ())):
            if first > at:
                gaps.append((at, first))
            at = max(at, end)
        if at < self._block_bytes:
            gaps.append((at, self._block_bytes))
        return gaps
