"""What the ledger must see of blocks that several bring or publish.

Blocks have 64 bytes, chunks half a block unless said.
"""

from __future__ import annotations

import pytest

from shared.errors import InvariantBroken
from shared.kv.ledger import SCRATCH, Target
from shared.kv.report import runs
from shared.kv.ticket import BlockState
from tests.support.kv_chains import HALF, FakeChunk, hash_of, hashes_of
from tests.support.ledger_site import A, B, C, Site


@pytest.fixture
def site() -> Site:
    return Site()


# --- blocks that somebody else publishes --------------------------------------------------------------------


def compute(site: Site, *path: int) -> list[int]:
    """A sequence computes and publishes a chain; pinned by it."""
    made = []
    for depth, hash_ in enumerate(hashes_of(*path)):
        block = site.pool.find(hash_)
        if block is None:
            [block] = site.pool.take(1)
            site.pool.publish(block, hash_, hash_of(*path[:depth]) if depth else None)
        else:
            site.pool.pin([block])
        made.append(block)
    return made


def test_a_published_block_is_found_at_the_next_chunk(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    mine = compute(site, 1)
    assert site.ledger.admit_chunk(FakeChunk(A, 0)) is SCRATCH
    assert (ticket.blocks, site.pool.promised(A)) == (mine, 1)
    assert site.changed() == {A}
    site.pool.unpin(mine)
    site.receive(A, 1)
    assert ticket.complete
    site.close(ticket)
    assert site.pool.pinned == 0
    site.check()


def test_blocks_that_the_caller_missed_are_found_when_a_ticket_is_opened(site: Site) -> None:
    mine = compute(site, 1, 2)
    site.pool.promise(A, 3)
    ticket = site.ledger.open(A, "rid", hashes_of(1, 2, 3), [], A)
    assert (ticket.have, ticket.blocks, ticket.unlanded, site.pool.promised(A)) == (0, mine, 1, 1)
    assert site.changed() == {A}


def test_refresh_finds_published_blocks(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    mine = compute(site, 1, 2)
    site.ledger.refresh()
    assert ticket.complete
    assert ticket.blocks == mine
    assert site.pool.promised(A) == 0
    site.pool.unpin(mine)
    assert [site.pool.refs(block) for block in mine] == [1, 1]
    site.check()


def test_a_half_landed_block_gives_way_to_a_published_one(site: Site) -> None:
    ticket = site.open(A, 1)
    good, out = FakeChunk(A, 0), FakeChunk(A, 0, HALF)
    site.ledger.admit_chunk(good)
    site.ledger.verified(good)
    target = site.ledger.admit_chunk(out)
    assert isinstance(target, Target)
    mine = compute(site, 1)
    site.ledger.refresh()
    assert ticket.complete
    assert ticket.blocks == mine
    assert site.pool.refs(target.block) == 1  # its chunk is still coming in
    site.check()
    site.ledger.verified(out)
    assert site.pool.refs(target.block) == 0
    site.pool.unpin(mine)
    site.close(ticket)
    assert (site.pool.free, site.pool.cached) == (15, 1)
    site.check()


def test_a_full_block_whose_twin_is_published_is_dropped(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    site.receive(A, 1)
    mine = compute(site, 1, 2)
    site.ledger.refresh()
    assert ticket.blocks == mine
    site.pool.unpin(mine)
    assert (site.pool.pinned, site.pool.free) == (2, 14)
    site.close(ticket)
    site.check()


# --- two tickets for one chain ------------------------------------------------------------------------------


def test_a_second_ticket_waits_for_blocks_on_their_way(site: Site) -> None:
    first = site.open(A, 1, 2)
    second = site.open(B, 1, 2, 3)
    assert (second.have, second.expected, second.unlanded) == (0, 2, 1)
    assert site.pool.promised_total == 3
    site.receive(A, 0)
    assert (first.to_come, second.to_come) == (1, 2)
    assert (first.published, second.published) == (1, 1)
    assert site.changed() == {A, B}
    assert site.pool.refs(first.blocks[0]) == 2
    site.receive(B, 2)
    assert second.published == 1
    site.receive(A, 1)
    assert first.complete
    assert second.complete
    assert first.blocks == second.blocks[:2]
    site.close(first)
    assert [site.pool.refs(block) for block in second.blocks] == [1, 1, 1]
    site.close(second)
    assert (site.pool.pinned, site.pool.cached) == (0, 3)
    site.check()


def test_eight_equal_tickets_bring_each_block_once(site: Site) -> None:
    names = [bytes([n]) * 16 for n in range(8)]
    tickets = [site.open(name, 1, 2, 3) for name in names]
    assert [ticket.expected for ticket in tickets] == [0] + [3] * 7
    site.receive(names[0], 2, 0, 1)
    assert all(ticket.complete for ticket in tickets)
    assert site.changed() == set(names)
    for ticket in tickets:
        site.close(ticket)
        site.check()
    assert (site.pool.pinned, site.pool.promised_total) == (0, 0)


def test_a_waiting_ticket_needs_what_the_ended_one_leaves(site: Site) -> None:
    first = site.open(A, 1, 2, 3)
    second = site.open(B, 1, 2)
    site.receive(A, 0)
    site.changed()
    assert site.pool.promised(B) == 0
    site.close(first)
    assert site.changed() == {B}
    assert (second.published, second.unlanded, site.pool.promised(B)) == (1, 1, 1)
    assert site.ledger.report(second).needs == ((1, 2),)
    assert site.pool.promised_total == 1
    site.check()
    site.receive(B, 1)
    assert second.complete


def test_only_the_oldest_waiting_ticket_takes_over(site: Site) -> None:
    first = site.open(A, 1, 2)
    second, third = site.open(B, 1), site.open(C, 1, 2)
    site.close(first)
    assert list(second.needs) == [0]
    assert list(third.needs) == [1]
    assert third.block_state(0) is BlockState.AWAITED
    site.check()
    site.receive(C, 1)
    site.receive(B, 0)
    assert second.complete
    assert third.complete


def test_what_has_landed_passes_on_with_its_bytes(site: Site) -> None:
    first = site.open(A, 1, 2)
    second = site.open(B, 1, 2)
    half = FakeChunk(A, 0)
    site.ledger.admit_chunk(half)
    site.ledger.verified(half)
    site.receive(A, 1)
    site.close(first)
    report = site.ledger.report(second)
    assert report.ranges == ((0, 0, HALF), (1, 0, 2 * HALF))
    assert report.needs == ((0, 1),)
    assert second.unlanded == 0
    site.check()
    assert site.ledger.admit_chunk(FakeChunk(B, 0)) is SCRATCH
    rest = FakeChunk(B, 0, HALF)
    assert isinstance(site.ledger.admit_chunk(rest), Target)
    site.ledger.verified(rest)
    assert second.complete


@pytest.mark.parametrize("end", ["verified", "damaged", "broken"])
def test_a_chunk_of_the_ended_ticket_still_counts_for_the_heir(site: Site, end: str) -> None:
    first = site.open(A, 1)
    second = site.open(B, 1)
    whole = FakeChunk(A, 0, 0, 2 * HALF)
    site.ledger.admit_chunk(whole)
    site.close(first)
    assert site.ledger.admit_chunk(FakeChunk(B, 0)) is SCRATCH
    site.ledger.report(second)
    getattr(site.ledger, end)(whole)
    site.check()
    if end == "verified":
        assert second.complete
    else:
        assert site.ledger.report(second).needs == ((0, 1),)
        site.receive(B, 0)
        assert second.complete


def test_a_waiting_ticket_may_end_first(site: Site) -> None:
    first = site.open(A, 1)
    second = site.open(B, 1)
    site.close(second)
    site.check()
    site.receive(A, 0)
    assert first.complete
    assert site.changed() == {A}


def test_a_chain_of_heirs(site: Site) -> None:
    names = [bytes([n]) * 16 for n in range(4)]
    tickets = [site.open(name, 1, 2) for name in names]
    for ticket in tickets[:3]:
        site.close(ticket)
        site.check()
    assert site.ledger.report(tickets[3]).needs == ((0, 2),)
    site.receive(names[3], 0, 1)
    assert tickets[3].complete


# --- transfers that yield -----------------------------------------------------------------------------------


def test_nobody_waits_for_a_transfer_that_yields(site: Site) -> None:
    parked = site.open(A, 1, 2, yields=True)
    half = FakeChunk(A, 0)
    site.ledger.admit_chunk(half)
    site.ledger.verified(half)
    urgent = site.open(B, 1, 2)
    assert (urgent.expected, urgent.unlanded) == (0, 1)
    assert (site.pool.promised(A), site.pool.promised(B)) == (0, 1)
    assert urgent.needs == {}
    assert site.ledger.report(urgent).ranges == ((0, 0, HALF),)
    assert parked.block_state(0) is parked.block_state(1) is BlockState.AWAITED
    site.check()
    rest = FakeChunk(B, 0, HALF)
    site.ledger.admit_chunk(rest)
    site.ledger.verified(rest)
    site.receive(B, 1)
    assert urgent.complete
    assert parked.complete


def test_transfers_that_yield_wait_for_one_another_and_for_urgent_ones(site: Site) -> None:
    site.open(A, 1, yields=True)
    assert site.open(B, 1, 2, yields=True).expected == 1
    assert site.open(C, 1, 2, 3).expected == 0
    assert site.open(b"d" * 16, 1, 2, 3, yields=True).expected == 3
    site.check()


def test_a_transfer_that_becomes_an_alignment_hands_over(site: Site) -> None:
    first = site.open(A, 1, 2)
    second = site.open(B, 1)
    third = site.open(C, 1, 2, yields=True)
    site.ledger.set_yields(first, True)
    assert (list(second.needs), list(first.needs)) == ([0], [])
    assert third.block_state(1) is first.block_state(0) is BlockState.AWAITED
    assert site.changed() == {B}
    assert (site.pool.promised(A), site.pool.promised(B)) == (1, 1)
    site.check()
    site.receive(B, 0)
    site.receive(A, 1)
    assert first.complete
    assert third.complete


def test_a_transfer_that_is_urgent_again_takes_over(site: Site) -> None:
    first = site.open(A, 1, yields=True)
    second = site.open(B, 1, 2, yields=True)
    site.ledger.set_yields(second, False)
    assert list(second.needs) == [0]
    assert first.block_state(0) is BlockState.AWAITED
    site.check()
    site.receive(B, 0, 1)
    assert first.complete
    assert second.complete
    site.ledger.set_yields(second, True)


def test_what_was_taken_over_is_not_needed_of_the_slow_sender(site: Site) -> None:
    parked = site.open(A, 1, yields=True)
    chunk = FakeChunk(A, 0)
    site.ledger.admit_chunk(chunk)
    site.ledger.damaged(chunk)
    site.open(B, 1)
    assert site.ledger.report(parked).needs == ()


def test_urgent_ones_do_not_take_over_from_one_another(site: Site) -> None:
    first, second = site.open(A, 1), site.open(B, 1)
    for ticket in (first, second):
        site.ledger.set_yields(ticket, False)
    assert first.block_state(0) is BlockState.WANTED
    assert second.block_state(0) is BlockState.AWAITED
    assert site.changed() == set()


def test_an_urgent_heir_is_preferred(site: Site) -> None:
    first = site.open(A, 1)
    slow, fast = site.open(B, 1, yields=True), site.open(C, 1)
    site.close(first)
    assert (slow.needs, list(fast.needs)) == ({}, [0])
    site.check()


# --- misuse and check ---------------------------------------------------------------------------------------


def test_a_ticket_is_opened_once_and_has_a_name(site: Site) -> None:
    site.open(A, 1)
    with pytest.raises(InvariantBroken, match="twice"):
        site.ledger.open(A, "rid", hashes_of(2), [], "key")
    with pytest.raises(InvariantBroken, match="no name"):
        site.ledger.open(b"", "rid", hashes_of(2), [], "key")
    with pytest.raises(InvariantBroken, match="2 of 1"):
        site.ledger.open(B, "rid", hashes_of(2), [0, 1], "key")


def test_a_ticket_is_closed_once(site: Site) -> None:
    ticket = site.open(A, 1)
    assert site.ledger.get(A) is ticket
    assert site.ledger.tickets() == [ticket]
    site.close(ticket)
    assert site.ledger.get(A) is None
    with pytest.raises(InvariantBroken, match="closed"):
        site.ledger.close(ticket)
    with pytest.raises(InvariantBroken, match="closed"):
        site.ledger.set_yields(ticket, True)


def test_check_sees_a_promise_that_is_too_small(site: Site) -> None:
    site.open(A, 1, 2)
    site.pool.unpromise(A, 1)
    with pytest.raises(InvariantBroken, match="smaller promise"):
        site.ledger.check()


def test_check_sees_a_lent_block_that_is_not_held(site: Site) -> None:
    site.open(A, 1)
    target = site.ledger.admit_chunk(FakeChunk(A, 0))
    assert isinstance(target, Target)
    site.ledger.check()
    site.pool.unpin([target.block])
    with pytest.raises(InvariantBroken, match="not held"):
        site.ledger.check()


@pytest.mark.parametrize(
    "damage",
    [
        lambda carriers: carriers._carrier.clear(),
        lambda carriers: carriers._waiters.clear(),
        lambda carriers: carriers._carrier.__setitem__(hash_of(9), next(iter(carriers._carrier.values()))),
        lambda carriers: carriers._waiters[hash_of(1)].__setitem__(C, next(iter(carriers._carrier.values()))),
        lambda carriers: setattr(next(iter(carriers._carrier.values())), "yields", True),
        lambda carriers: carriers._carrier.__setitem__(hash_of(1, 2), carriers._carrier[hash_of(1)]),
    ],
)
def test_check_sees_a_block_that_nobody_brings(site: Site, damage) -> None:  # type: ignore[no-untyped-def]
    site.open(A, 1)
    site.open(B, 1, 2)
    site.check()
    damage(site.ledger._carriers)
    with pytest.raises(InvariantBroken):
        site.ledger.check()


def test_runs() -> None:
    assert runs([]) == ()
    assert runs([1, 2, 5, 7, 8]) == ((1, 3), (5, 6), (7, 9))
