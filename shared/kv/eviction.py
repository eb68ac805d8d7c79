"""In which order cached blocks are given up: least recently used first, and never a block before its
children.

Blocks are published as chains (a hash covers its whole prefix), so a block without its parent cannot be
matched. Only published blocks are known here; whether one is pinned is told from outside. A parent counts as
used as recently as its children were. Blocks whose published children are all pinned are given up only when
nothing else is left. All operations are O(1), amortised. Knows nothing of reference counts, promises or
memory.
"""

from __future__ import annotations

from collections import OrderedDict

from shared.errors import InvariantBroken


class LeafLru:
    """The published blocks as a forest, and the loose (unpinned) ones among them in order of last use."""

    def __init__(self) -> None:
        self._hash: dict[int, bytes] = {}
        self._parent: dict[int, bytes | None] = {}
        self._block: dict[bytes, int] = {}
        self._children: dict[bytes, dict[int, None]] = {}  # by the parent's hash, which need not be published
        self._order: OrderedDict[int, None] = OrderedDict()  # loose blocks, oldest first
        self._shielded: OrderedDict[int, None] = OrderedDict()  # loose, met by `victim` before their children

    def __len__(self) -> int:
        """Loose blocks."""
        return len(self._order) + len(self._shielded)

    def __contains__(self, block: int) -> bool:
        return block in self._order or block in self._shielded

    def grow(self, block: int, hash_: bytes, parent: bytes | None) -> None:
        """A block was published (it is pinned, so not loose)."""
        self._hash[block] = hash_
        self._parent[block] = parent
        self._block[hash_] = block
        if parent is not None:
            self._children.setdefault(parent, {})[block] = None

    def loosen(self, block: int) -> None:
        """The last pin of a published block is gone: it is now the most recently used one."""
        self._order[block] = None

    def hold(self, block: int) -> None:
        """A loose block was pinned."""
        if self._order.pop(block, 0) == 0 and self._shielded.pop(block, 0) == 0:
            raise InvariantBroken(f"block {block} is pinned for the first time but was not loose")

    def touch(self, block: int) -> None:
        """A loose block was used. A chain is touched from its end to its start."""
        self._shielded.pop(block, None)
        self._order[block] = None
        self._order.move_to_end(block)

    def victim(self) -> int:
        """The loose block to give up next; the caller then drops it. Raises KeyError where none is."""
        while self._order:
            block = next(iter(self._order))
            if not self._children.get(self._hash[block]):
                return block
            del self._order[block]
            self._shielded[block] = None
        if not self._shielded:
            raise KeyError("no loose block")
        block = next(iter(self._shielded))
        while (child := self._loose_child(block)) is not None:
            self._shielded.move_to_end(child, last=False)
            block = child
        return block

    def drop(self, block: int) -> bytes:
        """Forget a published, loose block; returns its hash."""
        hash_ = self._hash.pop(block)
        parent = self._parent.pop(block)
        del self._block[hash_]
        if self._order.pop(block, 0) == 0:
            del self._shielded[block]
        if parent is not None:
            siblings = self._children[parent]
            del siblings[block]
            if not siblings:
                del self._children[parent]
                self._unshield(parent)
        return hash_

    def _unshield(self, parent: bytes) -> None:
        block = self._block.get(parent)
        if block is not None and block in self._shielded:
            # Its last child was the oldest of all, so it is now.
            del self._shielded[block]
            self._order[block] = None
            self._order.move_to_end(block, last=False)

    def _loose_child(self, block: int) -> int | None:
        for child in self._children.get(self._hash[block], ()):
            if child in self._shielded:
                return child
        return None

    def check(self) -> None:
        """Raise InvariantBroken where the forest contradicts itself."""
        if self._order.keys() & self._shielded.keys():
            raise InvariantBroken("a block is in two eviction lists")
        for block in (*self._order, *self._shielded):
            if block not in self._hash:
                raise InvariantBroken(f"loose block {block} is not published")
        if self._block != {hash_: block for block, hash_ in self._hash.items()}:
            raise InvariantBroken("a hash names a block that is not published under it")
        for parent, children in self._children.items():
            if not children:
                raise InvariantBroken("a parent without children is remembered")
            for child in children:
                if self._parent.get(child) != parent:
                    raise InvariantBroken(f"block {child} is listed under a parent that is not its own")
        listed = sum(len(children) for children in self._children.values())
        if listed != sum(parent is not None for parent in self._parent.values()):
            raise InvariantBroken("a published block is missing from its parent's children")
        for block in self._shielded:
            if not self._children.get(self._hash[block]):
                raise InvariantBroken(f"block {block} waits for children that it does not have")
