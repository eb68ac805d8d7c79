"""Moves of single blocks between a ticket, the pool and other tickets. Which move is due, `ledger` says."""

from __future__ import annotations

from shared.kv.carriers import Carriers
from shared.kv.loans import Loans
from shared.kv.pool import BlockPool
from shared.kv.ticket import BlockEvent, BlockState, Landing, Ticket, TicketEvent


class Custody:
    """Keeps pins, promises, carriers and block states in step with one another."""

    def __init__(self, pool: BlockPool, carriers: Carriers, loans: Loans) -> None:
        self._pool = pool
        self._carriers = carriers
        self._loans = loans

    def land(self, ticket: Ticket, index: int) -> Landing:
        """Memory for a block's first chunk, under the ticket's promise."""
        landing = Landing(self._pool.take(1, ticket.promise)[0], ticket)
        ticket.landings[index] = landing
        return landing

    def hold_next(self, ticket: Ticket) -> bool:
        """Publish or find, and pin, the next block of the chain. False: it is not here yet."""
        index = len(ticket.blocks)
        hash_ = ticket.hashes[index]
        state = ticket.block_state(index)
        block = self._pool.find(hash_)
        if block is not None:
            self._pool.pin([block])
            self.give_up(ticket.landings.pop(index, None))
            ticket.move_block(index, BlockEvent.FOUND)
        elif state is BlockState.FULL:
            block = ticket.landings.pop(index).block
            self._pool.publish(block, hash_, ticket.hashes[index - 1] if index else None)
            ticket.move_block(index, BlockEvent.PUBLISH)
        else:
            return False
        if state is BlockState.AWAITED:
            self._carriers.stop_waiting(hash_, ticket)
        else:
            self._carriers.forget(hash_)
        if state is BlockState.WANTED:
            self._pool.unpromise(ticket.promise, 1)
        ticket.needs.pop(index, None)
        ticket.blocks.append(block)
        ticket.move(TicketEvent.HOLD)
        return True

    def hand_over(self, ticket: Ticket, index: int, heir: Ticket) -> None:
        """From now on `heir`, which awaits the block, brings it, and `ticket` awaits it.

        What has landed goes with it, else the promise for it.
        """
        hash_ = ticket.hashes[index]
        self._carriers.stop_waiting(hash_, heir)
        self._carriers.carry(hash_, heir)
        self._carriers.wait(hash_, ticket)
        state = ticket.block_state(index)
        ticket.move_block(index, BlockEvent.YIELD)
        ticket.needs.pop(index, None)
        landing = ticket.landings.pop(index, None)
        if landing is None:
            heir.move_block(index, BlockEvent.CARRY)
            self._pool.unpromise(ticket.promise, 1)
            self._pool.promise(heir.promise, 1)
            return
        heir.move_block(index, BlockEvent.INHERIT_FULL if state is BlockState.FULL else BlockEvent.INHERIT)
        heir.landings[index] = landing
        landing.owner = heir

    def abandon(self, ticket: Ticket, index: int) -> None:
        """Nobody brings the block any more."""
        self._carriers.forget(ticket.hashes[index])
        self.give_up(ticket.landings.pop(index, None))

    def give_up(self, landing: Landing | None) -> None:
        """A block's memory is not wanted: free once no chunk is being received into it."""
        if landing is not None:
            self._loans.let_go(landing)
