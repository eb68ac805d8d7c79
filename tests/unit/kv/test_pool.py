"""Exact orders and exact numbers; random orders are in tests/property/test_pool.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared.errors import InvariantBroken, OutOfBlocks
from shared.kv.pool import BlockPool


def name(*path: int) -> bytes:
    """A hash that shows its chain: name(1, 2) is the child of name(1)."""
    return bytes(path).ljust(16, b"\0")


def chain(pool: BlockPool, *path: int, start: int = 0) -> list[int]:
    """Take and publish the blocks of path[start:], pinned once."""
    blocks = pool.take(len(path) - start)
    for block, depth in zip(blocks, range(start, len(path)), strict=True):
        assert pool.publish(block, name(*path[: depth + 1]), name(*path[:depth]) if depth else None)
    return blocks


def evicted(pool: BlockPool) -> list[bytes]:
    """Take every block that can be had, one by one; the removed hashes in order."""
    pool.drain_events()
    order: list[bytes] = []
    taken = []
    while pool.available:
        taken += pool.take(1)
        order += pool.drain_events()[1]
    pool.unpin(taken)
    return order


# --- taking, pinning, freeing -------------------------------------------------------------------------------


def test_a_new_pool_is_free() -> None:
    pool = BlockPool(4)
    assert (pool.total, pool.free, pool.cached, pool.pinned, pool.available) == (4, 4, 0, 0, 4)
    pool.check()


def test_blocks_are_reused_last_freed_first() -> None:
    pool = BlockPool(4)
    assert pool.take(3) == [0, 1, 2]
    pool.unpin([0, 1])
    assert pool.take(3) == [0, 1, 3]


def test_a_private_block_is_free_after_its_last_pin() -> None:
    pool = BlockPool(2)
    [block] = pool.take(1)
    pool.pin([block])
    pool.unpin([block])
    assert (pool.free, pool.pinned) == (1, 1)
    pool.unpin([block])
    assert (pool.free, pool.pinned) == (2, 0)


def test_a_published_block_stays_cached_after_its_last_pin() -> None:
    pool = BlockPool(2)
    blocks = chain(pool, 1)
    pool.unpin(blocks)
    assert (pool.free, pool.cached, pool.pinned, pool.available) == (1, 1, 0, 2)
    assert pool.match([name(1), name(1, 2)]) == blocks
    pool.pin(blocks)
    assert (pool.free, pool.cached, pool.pinned, pool.available) == (1, 0, 1, 1)
    assert (pool.refs(blocks[0]), pool.hash_of(blocks[0])) == (1, name(1))


def test_taking_too_much_takes_nothing() -> None:
    pool = BlockPool(3)
    pool.unpin(chain(pool, 1))
    with pytest.raises(OutOfBlocks, match="4 blocks wanted"):
        pool.take(4)
    assert (pool.free, pool.cached) == (2, 1)
    assert len(pool.take(3)) == 3


def test_nothing_is_taken_of_nothing() -> None:
    assert BlockPool(1).take(0) == []


def test_a_refused_unpin_unpins_none() -> None:
    pool = BlockPool(4)
    [block] = chain(pool, 1)
    with pytest.raises(InvariantBroken):
        pool.unpin([3, block])
    assert pool.refs(block) == 1


def test_loose_says_what_a_pin_costs() -> None:
    pool = BlockPool(4)
    blocks = chain(pool, 1, 2)
    assert pool.loose(blocks) == 0
    pool.unpin(blocks)
    assert pool.loose([*blocks, *blocks]) == 2


@pytest.mark.parametrize(
    "misuse",
    [
        lambda pool, block: pool.unpin([3]),
        lambda pool, block: pool.pin([3]),
        lambda pool, block: pool.unpin([block, block]),
        lambda pool, block: pool.publish(3, name(9), None),
        lambda pool, block: pool.publish(block, name(9), None),
        lambda pool, block: pool.take(-1),
        lambda pool, block: pool.promise("key", -1),
        lambda pool, block: pool.promise(None, 1),
        lambda pool, block: pool.unpromise("key", -1),
    ],
)
def test_misuse_is_an_error(misuse: Callable[[BlockPool, int], object]) -> None:
    pool = BlockPool(4)
    [block] = chain(pool, 1)
    pool.promise("key", 1)
    with pytest.raises(InvariantBroken):
        misuse(pool, block)


def test_a_refused_pin_pins_none() -> None:
    pool = BlockPool(4)
    [block] = chain(pool, 1)
    with pytest.raises(InvariantBroken):
        pool.pin([block, 3])
    assert pool.refs(block) == 1


def test_a_pool_has_blocks() -> None:
    with pytest.raises(InvariantBroken):
        BlockPool(0)


# --- publishing and matching --------------------------------------------------------------------------------


def test_match_stops_at_the_first_hole() -> None:
    pool = BlockPool(8)
    blocks = chain(pool, 1, 2, 3)
    assert pool.match([name(1), name(1, 2), name(1, 2, 9), name(1, 2, 3)]) == blocks[:2]
    assert pool.match([name(7), name(1)]) == []
    assert pool.match([]) == []
    assert pool.find(name(1, 2, 3)) == blocks[2]
    assert pool.find(name(7)) is None


def test_an_equal_hash_is_published_once() -> None:
    pool = BlockPool(4)
    [first] = chain(pool, 1)
    [twin] = pool.take(1)
    assert not pool.publish(twin, name(1), None)
    assert pool.hash_of(twin) is None
    pool.unpin([twin])
    assert pool.free == 3
    assert pool.find(name(1)) == first


def test_a_twin_can_stand_in_for_an_evicted_block() -> None:
    pool = BlockPool(2)
    pool.unpin(chain(pool, 1))
    [twin] = pool.take(1)
    assert not pool.publish(twin, name(1), None)
    [other] = pool.take(1)  # evicts the published one
    assert pool.find(name(1)) is None
    assert pool.publish(twin, name(1), None)
    pool.unpin([twin, other])
    pool.check()


# --- eviction order -----------------------------------------------------------------------------------------


def test_free_blocks_go_before_cached_ones() -> None:
    pool = BlockPool(3)
    pool.unpin(chain(pool, 1))
    pool.take(2)
    assert pool.find(name(1)) is not None
    pool.take(1)
    assert pool.find(name(1)) is None


def test_the_oldest_chain_goes_first_from_its_end() -> None:
    pool = BlockPool(8)
    old, new = chain(pool, 1, 2, 3), chain(pool, 4, 5)
    pool.unpin(old)
    pool.unpin(new)
    assert evicted(pool) == [name(1, 2, 3), name(1, 2), name(1), name(4, 5), name(4)]


def test_a_shared_prefix_outlives_both_branches() -> None:
    pool = BlockPool(8)
    left = chain(pool, 1, 2)
    right = chain(pool, 1, 3, start=1)
    pool.unpin(left)
    pool.unpin(right)
    assert evicted(pool) == [name(1, 2), name(1, 3), name(1)]


def test_a_match_counts_as_use() -> None:
    pool = BlockPool(8)
    pool.unpin(chain(pool, 1, 2))
    pool.unpin(chain(pool, 3, 4))
    pool.match([name(1), name(1, 2)])
    assert evicted(pool) == [name(3, 4), name(3), name(1, 2), name(1)]


def test_a_partial_match_refreshes_only_what_it_matched() -> None:
    pool = BlockPool(8)
    pool.unpin(chain(pool, 1, 2))
    pool.unpin(chain(pool, 3, 4))
    pool.match([name(1)])
    assert evicted(pool) == [name(1, 2), name(3, 4), name(3), name(1)]


def test_find_does_not_count_as_use() -> None:
    pool = BlockPool(8)
    pool.unpin(chain(pool, 1))
    pool.unpin(chain(pool, 2))
    pool.find(name(1))
    assert evicted(pool) == [name(1), name(2)]


def test_a_chain_released_from_its_start_still_goes_from_its_end() -> None:
    pool = BlockPool(8)
    blocks = chain(pool, 1, 2, 3)
    for block in blocks:  # as the pins of a sender end
        pool.unpin([block])
    assert evicted(pool) == [name(1, 2, 3), name(1, 2), name(1)]


def test_a_parent_is_as_recent_as_its_last_child() -> None:
    pool = BlockPool(8)
    parent, child = chain(pool, 1, 2)
    pool.unpin([parent])
    pool.unpin(chain(pool, 5))
    pool.unpin([child])
    assert evicted(pool) == [name(5), name(1, 2), name(1)]


def test_blocks_under_pinned_children_go_last_and_deepest_first() -> None:
    pool = BlockPool(8)
    blocks = chain(pool, 1, 2, 3)
    other = chain(pool, 6, 7)
    for block in blocks[:2]:
        pool.unpin([block])
    pool.unpin(other)
    assert pool.available == 7
    assert evicted(pool) == [name(6, 7), name(6), name(1, 2), name(1)]
    assert pool.find(name(1, 2, 3)) == blocks[2]
    pool.check()


@pytest.mark.parametrize("batch", [True, False])
def test_many_blocks_under_a_pinned_child(batch: bool) -> None:
    pool = BlockPool(8)
    blocks = chain(pool, 1, 2, 3, 4, 5)
    if batch:
        pool.unpin(blocks[:4])
    else:
        for block in blocks[:4]:
            pool.unpin([block])
    assert evicted(pool) == [name(1, 2, 3, 4), name(1, 2, 3), name(1, 2), name(1)]


def test_an_orphan_can_be_matched_again_when_its_parent_is_back() -> None:
    pool = BlockPool(2)
    parent, child = chain(pool, 1, 2)
    pool.unpin([parent])
    [other] = pool.take(1)
    assert pool.match([name(1), name(1, 2)]) == []
    assert pool.publish(other, name(1), None)
    assert pool.match([name(1), name(1, 2)]) == [other, child]
    pool.unpin([child])
    pool.unpin([other])
    pool.check()
    assert evicted(pool) == [name(1, 2), name(1)]


def test_a_repinned_block_loses_its_place_in_the_order() -> None:
    pool = BlockPool(8)
    first, second = chain(pool, 1), chain(pool, 2)
    pool.unpin(first)
    pool.unpin(second)
    pool.pin(first)
    pool.unpin(first)
    assert evicted(pool) == [name(2), name(1)]


def test_pinned_blocks_are_never_evicted() -> None:
    pool = BlockPool(4)
    held = chain(pool, 1, 2)
    assert evicted(pool) == []
    assert pool.match([name(1), name(1, 2)]) == held


# --- promises -----------------------------------------------------------------------------------------------


def test_a_promise_is_a_number() -> None:
    pool = BlockPool(4)
    pool.promise("a", 2)
    pool.promise("a", 1)
    assert (pool.promised("a"), pool.promised("b"), pool.promised_total) == (3, 0, 3)
    assert (pool.free, pool.available) == (4, 1)
    pool.unpromise("a", 1)
    assert (pool.promised("a"), pool.available) == (2, 2)
    pool.unpromise("a")
    pool.unpromise("a")
    assert (pool.promised("a"), pool.promised_total, pool.available) == (0, 0, 4)


def test_taking_back_more_than_is_left_takes_the_rest() -> None:
    pool = BlockPool(4)
    pool.promise("a", 2)
    pool.unpromise("a", 5)
    assert (pool.promised("a"), pool.promised_total) == (0, 0)


def test_promised_blocks_are_not_for_others() -> None:
    pool = BlockPool(4)
    pool.promise("a", 3)
    assert pool.room(None) == pool.room("b") == 1
    pool.take(1)
    with pytest.raises(OutOfBlocks):
        pool.take(1)
    with pytest.raises(OutOfBlocks):
        pool.take(1, "b")
    assert len(pool.take(3, "a")) == 3
    assert pool.promised("a") == 0


def test_taking_spends_the_promise_first_and_then_what_is_left() -> None:
    pool = BlockPool(5)
    pool.promise("a", 2)
    pool.promise("b", 1)
    assert pool.room("a") == 4
    pool.take(3, "a")
    assert (pool.promised("a"), pool.available) == (0, 1)
    with pytest.raises(OutOfBlocks):
        pool.take(2, "a")
    pool.check()


def test_a_failed_take_spends_no_promise() -> None:
    pool = BlockPool(3)
    pool.promise("a", 2)
    pool.promise("b", 1)
    with pytest.raises(OutOfBlocks):
        pool.take(3, "a")
    assert (pool.promised("a"), pool.free) == (2, 3)


def test_a_promise_may_be_met_by_eviction() -> None:
    pool = BlockPool(2)
    pool.unpin(chain(pool, 1, 2))
    pool.promise("a", 2)
    pool.take(2, "a")
    assert pool.hashes() == []


def test_more_promised_than_there_is_shows_in_check() -> None:
    pool = BlockPool(2)
    blocks = chain(pool, 1)
    pool.unpin(blocks)
    pool.promise("a", 2)
    pool.check()
    pool.pin(blocks)
    assert pool.available == -1
    assert pool.room(None) == 0
    assert pool.room("a") == 1
    with pytest.raises(InvariantBroken, match="promised"):
        pool.check()
    pool.unpin(blocks)
    pool.check()


def test_gains_grow_only_when_there_may_be_more() -> None:
    pool = BlockPool(4)
    blocks = pool.take(1)
    pool.pin(blocks)
    before = pool.gains
    pool.take(1)
    pool.unpin(blocks)
    assert pool.gains == before
    pool.unpin(blocks)
    assert pool.gains == before + 1
    pool.promise("a", 2)
    assert pool.gains == before + 2
    pool.take(1, "a")
    assert pool.gains == before + 2
    pool.unpromise("a")
    assert pool.gains == before + 3


# --- events -------------------------------------------------------------------------------------------------


def test_events_name_what_changed_since_the_last_time() -> None:
    pool = BlockPool(3)
    blocks = chain(pool, 1, 2)
    assert pool.drain_events() == ([name(1), name(1, 2)], [], False)
    assert pool.drain_events() == ([], [], False)
    pool.unpin(blocks)
    pool.take(2)
    assert pool.drain_events() == ([], [name(1, 2)], False)


def test_what_came_and_went_between_two_calls_is_not_named() -> None:
    pool = BlockPool(1)
    pool.unpin(chain(pool, 1))
    taken = pool.take(1)
    assert pool.drain_events() == ([], [], False)
    pool.unpin(taken)
    pool.unpin(chain(pool, 1))
    pool.drain_events()
    pool.unpin(pool.take(1))
    pool.unpin(chain(pool, 1))
    assert pool.drain_events() == ([], [], False)
    assert pool.hashes() == [name(1)]


def test_clear_keeps_what_is_pinned() -> None:
    pool = BlockPool(4)
    held = chain(pool, 1)
    pool.unpin(chain(pool, 2, 3))
    pool.drain_events()
    pool.clear_cached()
    assert pool.drain_events() == ([name(1)], [], True)
    assert pool.hashes() == [name(1)]
    assert (pool.free, pool.cached) == (3, 0)
    pool.unpin(held)
    pool.clear_cached()
    assert pool.drain_events() == ([], [], True)
    pool.check()


def test_clear_forgets_earlier_events() -> None:
    pool = BlockPool(2)
    pool.unpin(chain(pool, 1))
    pool.clear_cached()
    assert pool.drain_events() == ([], [], True)


# --- check --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._free.append(pool._free[0]),
        lambda pool: pool._free.append(0),
        lambda pool: pool._free.pop(),
        lambda pool: pool._refs.__setitem__(0, -1),
        lambda pool: pool._refs.__setitem__(1, 1),
        lambda pool: pool._by_hash.pop(name(1)),
        lambda pool: pool._by_hash.__setitem__(name(9), 3),
        lambda pool: pool._hash.__setitem__(0, None),
        lambda pool: pool._promised.__setitem__("a", 2),
        lambda pool: pool._promised.__setitem__("b", 0),
        lambda pool: pool._lru.hold(1),
        lambda pool: pool._lru.loosen(0),
        lambda pool: pool._lru._children.clear(),
        lambda pool: pool._lru._shielded.__setitem__(1, None),
        lambda pool: pool._lru._parent.__setitem__(1, name(7)),
    ],
)
def test_check_sees_damage(damage: Callable[[BlockPool], object]) -> None:
    pool = BlockPool(4)
    blocks = chain(pool, 1, 2)
    pool.unpin(blocks[1:])
    pool.promise("a", 1)
    pool.check()
    damage(pool)
    with pytest.raises(InvariantBroken):
        pool.check()
