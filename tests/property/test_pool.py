"""Any order of takes, pins, publications and promises: the books add up, and eviction follows its rule.

The rule is stated here by a slow model: of the unpinned published blocks without a published child, the one
used longest ago goes first, where a parent counts as used whenever a child of it was.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import OutOfBlocks
from shared.kv.pool import BlockPool
from tests.support.kv_chains import hashes_of

KEYS = ("a", "b")


class Model:
    """A pool beside what is known of it: when each published block was last used, and under which parent."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.held: list[list[int]] = []  # pinned blocks along a chain
        self.running: list[tuple[list[int], list[bytes], int]] = []  # blocks, hashes, how many were found
        self.used: dict[bytes, int] = {}
        self.parents: dict[bytes, bytes | None] = {}
        self.promises = dict.fromkeys(KEYS, 0)
        self.mirror: set[bytes] = set()
        self.clock = 0
        self.seen: Counter[str] = Counter()

    def step(self, random: Random) -> None:
        choices = [self.compute] * 4 + [self.release] * 3 + [self.release_start] * 4 + [self.publish] * 2
        choices += [self.share, self.promise, self.unpromise, self.overdraw, self.drain, self.touch]
        choices += [self.clear] if random.random() < 0.2 else []
        random.choice(choices)(random)
        self.check()

    # --- operations -----------------------------------------------------------------------------------------

    def compute(self, random: Random) -> None:
        """Match a chain, pin it, take what is missing and publish it in order, as a sequence does."""
        path = [random.randint(0, 1 if depth else 2) for depth in range(random.randint(1, 5))]
        hashes = hashes_of(*path)
        key = random.choice([None, *KEYS])
        found = self.match(hashes)
        lacking = len(path) - len(found)
        self.pool.pin(found)
        if self.pool.available < 0 or self.pool.room(key) < lacking:
            self.unpin(found)
            return
        blocks = found + self.take(lacking, key)
        self.running.append((blocks, hashes, len(found)))
        if random.random() < 0.5:
            self.publish(random)

    def publish(self, random: Random) -> None:
        """A computation is over: its new blocks are published in order."""
        if not self.running:
            return
        blocks, hashes, found = self.running.pop(random.randrange(len(self.running)))
        for depth in range(found, len(blocks)):
            parent = hashes[depth - 1] if depth else None
            if not self.pool.publish(blocks[depth], hashes[depth], parent):
                self.seen["twin"] += 1
                continue
            self.parents[hashes[depth]] = parent
            self.use([hashes[depth]])
        self.held.append(blocks)

    def release(self, random: Random) -> None:
        if self.held:
            self.unpin(self.held.pop(random.randrange(len(self.held))))

    def release_start(self, random: Random) -> None:
        """From the start, one by one, as the pins of a sender end."""
        if self.held:
            blocks = random.choice(self.held)
            for _ in range(min(len(blocks), random.randint(1, 3))):
                self.unpin([blocks.pop(0)])

    def share(self, random: Random) -> None:
        if self.held:
            blocks = list(random.choice(self.held))
            self.pool.pin(blocks)
            self.held.append(blocks)

    def touch(self, random: Random) -> None:
        self.match(hashes_of(*(random.randint(0, 1) for _ in range(4))))

    def promise(self, random: Random) -> None:
        key, n = random.choice(KEYS), random.randint(0, 4)
        if n <= self.pool.available:
            self.pool.promise(key, n)
            self.promises[key] += n

    def unpromise(self, random: Random) -> None:
        key, n = random.choice(KEYS), random.choice([None, 0, 1, 3])
        self.pool.unpromise(key, n)
        self.promises[key] = 0 if n is None else max(self.promises[key] - n, 0)

    def overdraw(self, random: Random) -> None:
        key = random.choice([None, *KEYS])
        before = (self.pool.free, self.pool.cached, self.pool.promised_total)
        with pytest.raises(OutOfBlocks):
            self.pool.take(self.pool.room(key) + 1, key)
        assert before == (self.pool.free, self.pool.cached, self.pool.promised_total)

    def clear(self, random: Random) -> None:
        self.pool.clear_cached()
        assert self.pool.cached == 0
        for hash_ in self.used.keys() - set(self.pool.hashes()):
            del self.used[hash_], self.parents[hash_]

    def drain(self, random: Random) -> None:
        stored, removed, cleared = self.pool.drain_events()
        if cleared:
            self.mirror.clear()
        assert not set(stored) & set(removed)
        assert not set(stored) & self.mirror
        assert set(removed) <= self.mirror
        self.mirror = (self.mirror | set(stored)) - set(removed)
        assert self.mirror == set(self.pool.hashes())

    # --- the rule -------------------------------------------------------------------------------------------

    def loose(self, hash_: bytes) -> bool:
        block = self.pool.find(hash_)
        return block is not None and not self.pool.refs(block)

    def use(self, hashes: list[bytes]) -> None:
        """Used now, from the end of a chain to its start."""
        for hash_ in reversed(hashes):
            self.clock += 1
            self.used[hash_] = self.clock

    def match(self, hashes: list[bytes]) -> list[int]:
        blocks = self.pool.match(hashes)
        assert blocks == [self.pool.find(hash_) for hash_ in hashes[: len(blocks)]]
        self.use([hash_ for hash_ in hashes[: len(blocks)] if self.loose(hash_)])
        return blocks

    def unpin(self, blocks: list[int]) -> None:
        self.pool.unpin(blocks)
        for block in reversed(blocks):
            hash_ = self.pool.hash_of(block)
            if hash_ is not None and self.loose(hash_):
                self.use([hash_])

    def recency(self, hash_: bytes) -> int:
        children = [child for child, parent in self.parents.items() if parent == hash_]
        return max([self.used[hash_], *map(self.recency, children)])

    def victims(self) -> set[bytes]:
        """What may go next: exactly one block, unless only blocks under pinned children are left."""
        loose = [hash_ for hash_ in self.used if self.loose(hash_)]
        leaves = [hash_ for hash_ in loose if hash_ not in self.parents.values()]
        if leaves:
            return {min(leaves, key=self.used.__getitem__)}
        self.seen["shielded"] += 1
        return {hash_ for hash_ in loose if not any(self.parents[child] == hash_ for child in loose)}

    def take(self, n: int, key: str | None) -> list[int]:
        """Take one by one, and compare each eviction with the rule."""
        taken = []
        for _ in range(n):
            before = set(self.pool.hashes())
            allowed = set() if self.pool.free else self.victims()
            if self.pool.promised(key):
                self.promises[str(key)] -= 1
            taken += self.pool.take(1, key)
            gone = before - set(self.pool.hashes())
            assert len(gone) == bool(allowed)
            assert gone <= allowed
            for hash_ in gone:
                self.seen["evicted"] += 1
                parent = self.parents.pop(hash_)
                if parent in self.used:
                    self.used[parent] = max(self.used[parent], self.used[hash_])
                del self.used[hash_]
        return taken

    def check(self) -> None:
        self.pool.check()
        assert self.pool.free + self.pool.cached + self.pool.pinned == self.pool.total
        held = self.held + [blocks for blocks, _, _ in self.running]
        assert self.pool.pinned == len({block for blocks in held for block in blocks})
        assert {key: self.pool.promised(key) for key in KEYS} == self.promises
        assert set(self.used) == set(self.pool.hashes())


@settings(max_examples=60, deadline=None)
@given(blocks=st.integers(4, 12), seeds=st.lists(st.integers(0, 2**24), min_size=60, max_size=120))
def test_any_order(blocks: int, seeds: list[int]) -> None:
    model = Model(blocks)
    for seed in seeds:
        model.step(Random(seed))
    while model.running:
        model.publish(Random(0))
    while model.held:
        model.release(Random(0))
    model.check()
    assert model.pool.pinned == 0


def test_the_model_meets_every_case() -> None:
    """The property is worth something: evictions, also of shielded blocks, and twins do occur."""
    seen: Counter[str] = Counter()
    for start in range(40):
        model = Model(4 + start % 8)
        for seed in range(start * 1000, start * 1000 + 120):
            model.step(Random(seed))
        seen += model.seen
    assert min(seen["evicted"], seen["shielded"], seen["twin"]) > 10, seen
