"""One ticket of a receiver: which blocks a transfer is to bring, and how far each of them is.

Two tables say what may happen: one for the ticket, one for each of its blocks. A pair that is not listed is a
bug. Knows neither pool nor other tickets: `ledger` moves them.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable

from shared.errors import InvariantBroken
from shared.kv.ranges import Ranges


class _Fast(enum.Enum):
    """Hashed by identity: tables of them are looked up several times for each chunk."""

    __hash__ = object.__hash__


class BlockState(_Fast):
    WANTED = "wanted"  # to come under this ticket; has no memory yet
    AWAITED = "awaited"  # on its way under another ticket
    LANDING = "landing"  # has memory, verified in part
    FULL = "full"  # verified to the last byte; the chain before it is not
    HELD = "held"  # published and pinned by this ticket


class BlockEvent(_Fast):
    LEND = "lend"  # memory was handed out for a chunk
    VERIFY = "verify"  # a chunk is here and right, more is missing
    FILL = "fill"  # the last missing chunk is here and right
    RETURN = "return"  # a chunk was damaged, or its connection ended inside it
    PUBLISH = "publish"  # its turn in the chain: published as it is
    FOUND = "found"  # its turn in the chain: an equal block was already published
    CARRY = "carry"  # taken over from another ticket, nothing of it is here
    INHERIT = "inherit"  # taken over from another ticket, a part of it is here
    INHERIT_FULL = "inherit full"  # taken over from another ticket, all of it is here
    YIELD = "yield"  # a more urgent ticket has taken it over


BLOCK_TABLE: dict[tuple[BlockState, BlockEvent], BlockState] = {
    (BlockState.WANTED, BlockEvent.LEND): BlockState.LANDING,
    (BlockState.WANTED, BlockEvent.FOUND): BlockState.HELD,
    (BlockState.AWAITED, BlockEvent.FOUND): BlockState.HELD,
    (BlockState.WANTED, BlockEvent.YIELD): BlockState.AWAITED,
    (BlockState.LANDING, BlockEvent.YIELD): BlockState.AWAITED,
    (BlockState.FULL, BlockEvent.YIELD): BlockState.AWAITED,
    (BlockState.AWAITED, BlockEvent.CARRY): BlockState.WANTED,
    (BlockState.AWAITED, BlockEvent.INHERIT): BlockState.LANDING,
    (BlockState.AWAITED, BlockEvent.INHERIT_FULL): BlockState.FULL,
    (BlockState.LANDING, BlockEvent.LEND): BlockState.LANDING,
    (BlockState.LANDING, BlockEvent.VERIFY): BlockState.LANDING,
    (BlockState.LANDING, BlockEvent.FILL): BlockState.FULL,
    (BlockState.LANDING, BlockEvent.RETURN): BlockState.LANDING,
    (BlockState.LANDING, BlockEvent.FOUND): BlockState.HELD,
    (BlockState.FULL, BlockEvent.PUBLISH): BlockState.HELD,
    (BlockState.FULL, BlockEvent.FOUND): BlockState.HELD,
}


class TicketState(_Fast):
    OPEN = "open"  # blocks are missing
    COMPLETE = "complete"  # every block is published and pinned
    CLOSED = "closed"  # its pins are somebody else's; chunks that name it are answered `gone`


class TicketEvent(_Fast):
    CHUNK = "chunk"  # a chunk asks for memory
    YIELD = "yield"  # it becomes less urgent than others that want the same blocks
    HURRY = "hurry"  # it is urgent again
    HOLD = "hold"  # the next block of the chain is held
    COMPLETE = "complete"  # the last block is held
    CLOSE = "close"


TICKET_TABLE: dict[tuple[TicketState, TicketEvent], TicketState] = {
    (TicketState.OPEN, TicketEvent.CHUNK): TicketState.OPEN,
    (TicketState.OPEN, TicketEvent.HOLD): TicketState.OPEN,
    (TicketState.OPEN, TicketEvent.COMPLETE): TicketState.COMPLETE,
    (TicketState.OPEN, TicketEvent.YIELD): TicketState.OPEN,
    (TicketState.OPEN, TicketEvent.HURRY): TicketState.OPEN,
    (TicketState.OPEN, TicketEvent.CLOSE): TicketState.CLOSED,
    (TicketState.COMPLETE, TicketEvent.YIELD): TicketState.COMPLETE,
    (TicketState.COMPLETE, TicketEvent.HURRY): TicketState.COMPLETE,
    (TicketState.COMPLETE, TicketEvent.CHUNK): TicketState.COMPLETE,
    (TicketState.COMPLETE, TicketEvent.CLOSE): TicketState.CLOSED,
}


class Landing:
    """The memory of a block that is coming in. It may pass from a ticket that ends to one that waits for the
    block.
    """

    __slots__ = ("block", "lent", "owner", "refused", "verified")

    def __init__(self, block: int, owner: Ticket) -> None:
        self.block = block  # pool address; pinned once, until nobody owns it and no range is lent
        self.owner: Ticket | None = owner  # None: given up; kept only until the lent ranges are back
        self.verified = Ranges()
        self.lent: list[tuple[int, int]] = []  # ranges whose chunk is being received into the block
        self.refused: list[tuple[int, int]] = []  # ranges sent to scratch because they overlapped a lent one

    def collides(self, first: int, end: int) -> bool:
        """Whether a lent range overlaps [first, end)."""
        return any(a < end and first < b for a, b in self.lent)


class Ticket:
    """State of one transfer towards this node. Fields are read by anyone, written by the ledger alone."""

    def __init__(
        self, ticket: bytes, rid: Hashable, hashes: list[bytes], blocks: list[int], promise: Hashable
    ) -> None:
        self.ticket = ticket
        self.rid = rid
        self.hashes = hashes  # of blocks [0, upto)
        self.have = len(blocks)  # leading blocks that were published when it was opened
        self.expected = (
            0  # blocks after `have` that were on their way under another ticket when it was opened
        )
        self.blocks = blocks  # pool addresses of the leading published blocks, pinned by this ticket
        self.promise = promise  # pool key under which blocks are taken
        self.yields = False  # a ticket that does not yield takes over the blocks that this one is to bring
        self.state = TicketState.OPEN
        self.landings: dict[int, Landing] = {}  # by index in the chain: LANDING and FULL
        self.needs: dict[int, None] = {}  # blocks to ask the sender for, not reported yet
        self._states: list[BlockState] = []  # of blocks [have, upto)
        self._unlanded = 0

    @property
    def upto(self) -> int:
        """Blocks of the whole chain."""
        return len(self.hashes)

    @property
    def published(self) -> int:
        """Leading blocks published and pinned here."""
        return len(self.blocks)

    @property
    def complete(self) -> bool:
        """Every block is published and pinned."""
        return self.state is TicketState.COMPLETE

    @property
    def to_come(self) -> int:
        """Blocks not published yet."""
        return self.upto - self.published

    @property
    def unlanded(self) -> int:
        """Blocks that will still be taken under the promise."""
        return self._unlanded

    def begin(self, states: Iterable[BlockState]) -> None:
        """Set the state of each block after the held ones, once."""
        self._states = list(states)
        self._unlanded = self._states.count(BlockState.WANTED)

    def block_state(self, index: int) -> BlockState:
        return BlockState.HELD if index < self.have else self._states[index - self.have]

    def move_block(self, index: int, event: BlockEvent) -> None:
        """Apply the block table; raises InvariantBroken for a pair that is not in it."""
        at = index - self.have
        before = self._states[at] if at >= 0 else BlockState.HELD
        after = BLOCK_TABLE.get((before, event))
        if after is before:
            return
        if after is None:
            raise InvariantBroken(f"block {index} of a ticket is {before.value} and cannot {event.value}")
        self._states[at] = after
        self._unlanded += (after is BlockState.WANTED) - (before is BlockState.WANTED)

    def move(self, event: TicketEvent) -> None:
        """Apply the ticket table; raises InvariantBroken for a pair that is not in it."""
        after = TICKET_TABLE.get((self.state, event))
        if after is None:
            raise InvariantBroken(f"a ticket is {self.state.value} and cannot {event.value}")
        self.state = after

    def check(self) -> None:
        """Raise InvariantBroken where the states of the blocks and what is kept of them differ."""
        if self.published < self.have:
            raise InvariantBroken(f"{self.published} blocks are published, {self.have} were at the start")
        for index in range(self.have, self.upto):
            state = self.block_state(index)
            if (state is BlockState.HELD) != (index < self.published):
                raise InvariantBroken(f"block {index} is {state.value}, {self.published} are published")
            if (state in (BlockState.LANDING, BlockState.FULL)) != (index in self.landings):
                raise InvariantBroken(f"block {index} is {state.value} but its memory says otherwise")
        if self._unlanded != self._states.count(BlockState.WANTED):
            raise InvariantBroken(f"{self._unlanded} blocks are counted as wanted")
        if self.complete != (self.published == self.upto):
            raise InvariantBroken(f"a ticket with {self.to_come} blocks to come is {self.state.value}")
        for index, landing in self.landings.items():
            if landing.owner is not self:
                raise InvariantBroken(f"the memory of block {index} has another owner")
