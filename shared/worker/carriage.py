"""Which of the open transfers to a node sends a block that several of them want: it crosses the line once.

The receiver sees it the same way: one ticket brings a block, the others wait for that one; where it ends
without the block, the receiver asks another one for it. Pure books: bytes, classes and messages are the
caller's.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.worker.transfer import Transfer

Key = tuple[str, int, bytes]
"""Node, its incarnation, and the hash of a block."""


class Carriage:
    """One carrier for each hash that open transfers are to bring to a process. Methods return who was
    changed.
    """

    def __init__(self) -> None:
        self._carriers: dict[Key, Transfer] = {}

    def __len__(self) -> int:
        return len(self._carriers)

    def begin(self, transfer: Transfer) -> list[Transfer]:
        """A transfer opens. An urgent one takes over what slow ones have still to send, no more."""
        changed: dict[bytes, Transfer] = {}
        for block in transfer.wanted:
            known = self._carriers.get(_key(transfer, block))
            if known is not None and (not transfer.urgent or known.urgent or known.has_sent(block)):
                transfer.leave(block)
                changed[transfer.ticket] = transfer
            else:
                self._give(transfer, block, changed)
        return list(changed.values())

    def ask(self, transfer: Transfer, blocks: Iterable[int]) -> list[Transfer]:
        """The receiver has asked this transfer for blocks. Those that another one has just sent may land yet:
        they are sent again when they are asked for again.
        """
        changed: dict[bytes, Transfer] = {}
        for block in blocks:
            known = self._carriers.get(_key(transfer, block))
            if known is not None and known is not transfer and known.has_sent(block):
                transfer.skip(block)
            self._give(transfer, block, changed)
        return list(changed.values())

    def end(self, transfer: Transfer, blocks: Iterable[int], others: Iterable[Transfer]) -> list[Transfer]:
        """A transfer brings blocks no more. What it has not brought is taken back by one that had left it: a
        block that has landed and was not published, for want of one before it, ends with its ticket.
        """
        lost: dict[bytes, int] = {}
        for block in blocks:
            key = _key(transfer, block)
            if self._carriers.get(key) is transfer:
                del self._carriers[key]
                if block >= transfer.published:
                    lost[transfer.hashes[block]] = block
        changed: dict[bytes, Transfer] = {}
        if lost:
            for other in sorted(others, key=lambda one: one.cls):
                if other is not transfer and _place(other) == _place(transfer):
                    self._take_back(other, lost, changed)
        return list(changed.values())

    def _take_back(self, other: Transfer, lost: dict[bytes, int], changed: dict[bytes, Transfer]) -> None:
        for block in other.left:
            if other.hashes[block] in lost and _key(other, block) not in self._carriers:
                other.take_back(block)
                self._give(other, block, changed)
                changed[other.ticket] = other

    def awaited(self, transfer: Transfer) -> list[Transfer]:
        """Transfers that bring what this one's receiver waits for."""
        found: dict[bytes, Transfer] = {}
        for block in transfer.waits_for():
            carrier = self._carriers.get(_key(transfer, block))
            if carrier is not None and carrier is not transfer:
                found[carrier.ticket] = carrier
        return list(found.values())

    def _give(self, transfer: Transfer, block: int, changed: dict[bytes, Transfer]) -> None:
        key = _key(transfer, block)
        known = self._carriers.get(key)
        self._carriers[key] = transfer
        if known is not None and known is not transfer:
            known.leave(block)  # equal chain hash, equal place in the chain
            changed[known.ticket] = known


def _place(transfer: Transfer) -> tuple[str, int]:
    """A node that has started anew holds nothing of what was brought to it before."""
    return transfer.target, transfer.incarnation


def _key(transfer: Transfer, block: int) -> Key:
    return transfer.target, transfer.incarnation, transfer.hashes[block]
