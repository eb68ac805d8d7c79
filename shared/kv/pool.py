"""Who holds which block: reference counts, published hashes, promises, eviction. Pure bookkeeping.

A block is free, private (pinned, no hash yet), published and pinned, or cached (published, no pin: it may be
evicted). Knows nothing of KV bytes, tickets or sequences. Every method leaves the pool consistent or raises
before any change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from shared.errors import InvariantBroken, OutOfBlocks
from shared.kv.eviction import LeafLru


class BlockPool:
    """Blocks 0 .. blocks - 1 of one KV memory."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise InvariantBroken(f"a pool needs at least one block, not {blocks}")
        self._refs = [0] * blocks
        self._hash: list[bytes | None] = [None] * blocks
        self._by_hash: dict[bytes, int] = {}
        self._free = list(range(blocks - 1, -1, -1))  # a stack: the block freed last is reused first
        self._lru = LeafLru()
        self._promised: dict[Hashable, int] = {}
        self._promised_total = 0
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._cleared = False
        self._gains = 0

    # --- numbers --------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        return len(self._refs)

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Published blocks without a pin: each may be evicted."""
        return len(self._lru)

    @property
    def pinned(self) -> int:
        """Blocks with at least one pin, private or published."""
        return self.total - self.free - self.cached

    @property
    def promised_total(self) -> int:
        return self._promised_total

    @property
    def available(self) -> int:
        """Blocks that may be promised or taken. Negative only between a pin and its caller's test."""
        return self.free + self.cached - self._promised_total

    @property
    def gains(self) -> int:
        """Grows whenever `room` may have grown for anybody: a taker that failed need not try again before."""
        return self._gains

    # --- lookup ---------------------------------------------------------------------------------------------

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the leading hashes that are published, counted as used now. Pins nothing."""
        blocks: list[int] = []
        for hash_ in hashes:
            block = self._by_hash.get(hash_)
            if block is None:
                break
            blocks.append(block)
        for block in reversed(blocks):
            if not self._refs[block]:
                self._lru.touch(block)
        return blocks

    def find(self, hash_: bytes) -> int | None:
        """The block published under a hash. Does not count as use."""
        return self._by_hash.get(hash_)

    def hash_of(self, block: int) -> bytes | None:
        """The hash a block is published under; None: private or free."""
        return self._hash[block]

    def refs(self, block: int) -> int:
        """Pins on a block."""
        return self._refs[block]

    def hashes(self) -> list[bytes]:
        """Every published hash, oldest first: what a mirror that replays all events holds."""
        return list(self._by_hash)

    # --- pins -----------------------------------------------------------------------------------------------

    def loose(self, blocks: Iterable[int]) -> int:
        """By how much `pin(blocks)` would lower `available`."""
        return sum(not self._refs[block] for block in set(blocks))

    def pin(self, blocks: Sequence[int]) -> None:
        """One more holder of each block; a cached block can then not be evicted.

        Raises InvariantBroken for a free block. Pinning cached blocks lowers `available`: the caller tests it
        after and unpins where it does not suffice, or asks `loose` before.
        """
        for block in blocks:
            if not self._refs[block] and self._hash[block] is None:
                raise InvariantBroken(f"block {block} is pinned but holds nothing")
        for block in blocks:
            if not self._refs[block]:
                self._lru.hold(block)
            self._refs[block] += 1

    def unpin(self, blocks: Sequence[int]) -> None:
        """One holder less of each block, given in chain order; the last leaves it cached or, if private,
        free.
        """
        for block in blocks:
            if not self._refs[block]:
                raise InvariantBroken(f"block {block} is unpinned but has no pin")
        for block in reversed(blocks):
            refs = self._refs[block] - 1
            if refs < 0:
                raise InvariantBroken(f"block {block} is unpinned more often than it was pinned")
            self._refs[block] = refs
            if refs:
                continue
            self._gains += 1
            if self._hash[block] is None:
                self._free.append(block)
            else:
                self._lru.loosen(block)

    # --- promises -------------------------------------------------------------------------------------------

    def promise(self, key: Hashable, n: int) -> None:
        """Set `n` more blocks aside for `key`. The caller has seen that `available` suffices."""
        if n < 0 or key is None:
            raise InvariantBroken(f"a promise of {n} blocks for {key!r}")
        if n:
            self._promised[key] = self._promised.get(key, 0) + n
            self._promised_total += n
            self._gains += 1

    def promised(self, key: Hashable) -> int:
        """Blocks still set aside for `key`."""
        return self._promised.get(key, 0)

    def room(self, key: Hashable | None) -> int:
        """How many blocks `take` would give under `key`."""
        covered = self._promised.get(key, 0) if key is not None else 0
        return min(covered + max(self.available, 0), self.free + self.cached)

    def unpromise(self, key: Hashable, n: int | None = None) -> None:
        """Take `n` blocks of the promise back, at most what is left of it; None: all."""
        held = self._promised.get(key, 0)
        back = held if n is None else min(n, held)
        if back < 0:
            raise InvariantBroken(f"{n} blocks of a promise are taken back")
        if back:
            self._spend(key, back)
            self._gains += 1

    def _spend(self, key: Hashable, n: int) -> None:
        left = self._promised[key] - n
        if left:
            self._promised[key] = left
        else:
            del self._promised[key]
        self._promised_total -= n

    # --- blocks ---------------------------------------------------------------------------------------------

    def take(self, n: int, key: Hashable | None = None) -> list[int]:
        """`n` private blocks with one pin each, their content undefined; spends the promise of `key` first.

        Evicts where no block is free. What exceeds the promise may not touch what is promised to others:
        raises OutOfBlocks, and takes nothing, where it would.
        """
        if n < 0:
            raise InvariantBroken(f"{n} blocks are taken")
        covered = min(n, self._promised.get(key, 0)) if key is not None else 0
        if n > self.room(key):
            raise OutOfBlocks(
                f"{n} blocks wanted, {covered} of them promised: {self.free} free, {self.cached} cached,"
                f" {self._promised_total} promised of {self.total}"
            )
        if covered:
            self._spend(key, covered)
        blocks = []
        for _ in range(n):
            if not self._free:
                self._evict(self._lru.victim())
            block = self._free.pop()
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def publish(self, block: int, hash_: bytes, parent: bytes | None) -> bool:
        """Offer a private block, now full and never written again, to every match under its chain hash.

        `parent` is the hash of the block before it; None: it is the first of its chain. False: an equal hash
        is already published, and the block stays private. A chain is published from its start; a block whose
        parent is not published (any more) is kept but cannot be matched until the parent is back.
        """
        if not self._refs[block]:
            raise InvariantBroken(f"block {block} is published but nobody holds it")
        if self._hash[block] is not None:
            raise InvariantBroken(f"block {block} is published twice")
        if hash_ in self._by_hash:
            return False
        self._hash[block] = hash_
        self._by_hash[hash_] = block
        self._lru.grow(block, hash_, parent)
        if hash_ in self._removed:
            del self._removed[hash_]
        else:
            self._stored[hash_] = None
        return True

    def clear_cached(self) -> None:
        """Forget every cached block. Pinned ones stay published."""
        while len(self._lru):
            self._evict(self._lru.victim())
        self._cleared = True
        self._removed = {}
        self._stored = dict.fromkeys(self._by_hash)

    def _evict(self, block: int) -> None:
        hash_ = self._lru.drop(block)
        del self._by_hash[hash_]
        self._hash[block] = None
        self._free.append(block)
        if hash_ in self._stored:
            del self._stored[hash_]
        else:
            self._removed[hash_] = None

    # --- events ---------------------------------------------------------------------------------------------

    def drain_events(self) -> tuple[list[bytes], list[bytes], bool]:
        """What changed since the last call: (stored, removed, cleared).

        A mirror that first forgets everything where `cleared`, then adds `stored` and deletes `removed` (no
        hash is in both) holds exactly `hashes()`.
        """
        if not (self._stored or self._removed or self._cleared):
            return ([], [], False)
        events = (list(self._stored), list(self._removed), self._cleared)
        self._stored, self._removed, self._cleared = {}, {}, False
        return events

    def check(self) -> None:
        """Raise InvariantBroken where the books do not add up, or more is promised than there is."""
        if len(set(self._free)) != len(self._free):
            raise InvariantBroken("a block is free twice")
        for block in self._free:
            if self._refs[block] or self._hash[block] is not None:
                raise InvariantBroken(f"free block {block} is pinned or published")
        free = set(self._free)
        for block, refs in enumerate(self._refs):
            hash_ = self._hash[block]
            if refs < 0:
                raise InvariantBroken(f"block {block} has {refs} pins")
            if hash_ is not None and self._by_hash.get(hash_) != block:
                raise InvariantBroken(f"block {block} is not found under its hash")
            if (block in self._lru) != (hash_ is not None and not refs):
                raise InvariantBroken(f"block {block} is cached or not, against its pins and hash")
            if not refs and hash_ is None and block not in free:
                raise InvariantBroken(f"block {block} is lost: no pin, no hash, not free")
        if len(self._by_hash) != sum(hash_ is not None for hash_ in self._hash):
            raise InvariantBroken("a published hash has no block")
        if (
            self._promised_total != sum(self._promised.values())
            or min(self._promised.values(), default=1) < 1
        ):
            raise InvariantBroken("promises do not add up")
        if self.available < 0:
            raise InvariantBroken(
                f"{self._promised_total} blocks are promised, {self.free + self.cached} can be had"
            )
        self._lru.check()
