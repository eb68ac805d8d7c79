"""What the pool's tests cannot reach: misuse, and a long chain under a pinned end."""

from __future__ import annotations

import pytest

from shared.errors import InvariantBroken
from shared.kv.eviction import LeafLru
from tests.support.kv_chains import hash_of, hashes_of


def chain(lru: LeafLru, length: int) -> None:
    """Publish blocks 0 .. length - 1 as one chain."""
    hashes = hashes_of(*range(length))
    for block, hash_ in enumerate(hashes):
        lru.grow(block, hash_, hashes[block - 1] if block else None)


def test_without_a_loose_block_there_is_no_victim() -> None:
    lru = LeafLru()
    chain(lru, 2)
    with pytest.raises(KeyError):
        lru.victim()
    assert (len(lru), 0 in lru) == (0, False)


def test_a_block_is_held_only_when_loose() -> None:
    lru = LeafLru()
    chain(lru, 2)
    with pytest.raises(InvariantBroken, match="was not loose"):
        lru.hold(0)
    lru.loosen(0)
    assert (len(lru), 0 in lru) == (1, True)
    lru.hold(0)
    assert len(lru) == 0


def test_a_shielded_block_can_be_held() -> None:
    lru = LeafLru()
    chain(lru, 2)
    lru.loosen(0)
    assert lru.victim() == 0  # its child is pinned, but nothing else is left
    lru.hold(0)
    assert len(lru) == 0
    lru.check()


@pytest.mark.parametrize("order", [range(15), range(14, -1, -1)])
def test_a_chain_under_a_pinned_end_goes_from_its_end(order: range) -> None:
    lru = LeafLru()
    chain(lru, 16)
    for block in order:
        lru.loosen(block)
    for block in range(14, -1, -1):
        assert lru.victim() == block
        assert lru.drop(block) == hashes_of(*range(16))[block]
        lru.check()


def test_the_search_under_a_pinned_end_is_not_begun_anew_for_each_block() -> None:
    looked = 0

    class Counting(LeafLru):
        def _loose_child(self, block: int) -> int | None:
            nonlocal looked
            looked += 1
            return super()._loose_child(block)

    lru = Counting()
    chain(lru, 101)
    for block in range(99, -1, -1):
        lru.loosen(block)
    for _ in range(100):
        lru.drop(lru.victim())
    assert looked <= 3 * 100


def test_nothing_is_remembered_of_a_dropped_block() -> None:
    lru = LeafLru()
    chain(lru, 1)
    lru.loosen(0)
    lru.drop(0)
    lru.check()
    lru.grow(5, hash_of(0), None)
    lru.check()
