"""Which of the open transfers to a node sends a block that several of them want: it crosses the line once.

The receiver sees it the same way: one ticket brings a block, the others wait for that one; where it ends
without the block, the receiver asks another one for it. Pure books: bytes, classes and messages are the
caller's.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.worker.transfer import Transfer


class Carriage:
    """One carrier for each (node, hash) that open transfers are to bring. Methods return who was changed."""

    def __init__(self) -> None:
        self._carriers: dict[tuple[str, bytes], Transfer] = {}

    def __len__(self) -> int:
        return len(self._carriers)

    def begin(self, transfer: Transfer) -> list[Transfer]:
        """A transfer opens. An urgent one takes over what slow ones have still to send, no more."""
        changed: dict[bytes, Transfer] = {}
        for block in transfer.wanted:
            known = self._carriers.get((transfer.target, transfer.hashes[block]))
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
            known = self._carriers.get((transfer.target, transfer.hashes[block]))
            if known is not None and known is not transfer and known.has_sent(block):
                transfer.skip(block)
            self._give(transfer, block, changed)
        return list(changed.values())

    def end(self, transfer: Transfer, blocks: Iterable[int], others: Iterable[Transfer]) -> list[Transfer]:
        """A transfer brings blocks no more. What has not landed is taken back by one that had left it."""
        lost: dict[bytes, int] = {}
        for block in blocks:
            hash_ = transfer.hashes[block]
            if self._carriers.get((transfer.target, hash_)) is transfer:
                del self._carriers[transfer.target, hash_]
                if not transfer.has_landed(block):
                    lost[hash_] = block
        changed: dict[bytes, Transfer] = {}
        if lost:
            for other in sorted(others, key=lambda one: one.cls):
                if other is not transfer and other.target == transfer.target:
                    self._take_back(other, lost, changed)
        return list(changed.values())

    def _take_back(self, other: Transfer, lost: dict[bytes, int], changed: dict[bytes, Transfer]) -> None:
        for block in other.left:
            hash_ = other.hashes[block]
            if hash_ in lost and (other.target, hash_) not in self._carriers:
                other.take_back(block)
                self._give(other, block, changed)
                changed[other.ticket] = other

    def awaited(self, transfer: Transfer) -> list[Transfer]:
        """Transfers that bring what this one's receiver waits for."""
        found: dict[bytes, Transfer] = {}
        for block in transfer.waits_for():
            carrier = self._carriers.get((transfer.target, transfer.hashes[block]))
            if carrier is not None and carrier is not transfer:
                found[carrier.ticket] = carrier
        return list(found.values())

    def _give(self, transfer: Transfer, block: int, changed: dict[bytes, Transfer]) -> None:
        key = (transfer.target, transfer.hashes[block])
        known = self._carriers.get(key)
        self._carriers[key] = transfer
        if known is not None and known is not transfer:
            known.leave(block)  # equal chain hash, equal place in the chain
            changed[known.ticket] = known
