"""What the ledger must see of one ticket and its chunks.

Blocks have 64 bytes, chunks half a block unless said.
"""

from __future__ import annotations

import pytest

from shared.errors import BadChunk, InvariantBroken
from shared.kv.ledger import GONE, SCRATCH, Target, Ticket
from shared.kv.loans import Loans
from shared.kv.pool import BlockPool
from shared.kv.ticket import Landing
from tests.support.kv_chains import HALF, TWO_GROUPS, FakeChunk, hashes_of
from tests.support.ledger_site import A, B, Site


@pytest.fixture
def site() -> Site:
    return Site()


# --- one ticket ---------------------------------------------------------------------------------------------


def test_blocks_are_published_in_chain_order(site: Site) -> None:
    ticket = site.open(A, 1, 2, 3)
    assert (ticket.have, ticket.expected, ticket.upto, ticket.unlanded) == (0, 0, 3, 3)
    site.receive(A, 2, 1)
    assert (site.pool.hashes(), ticket.published) == ([], 0)
    assert site.changed() == set()
    site.receive(A, 0)
    assert site.pool.hashes() == hashes_of(1, 2, 3)
    assert ticket.complete
    assert site.changed() == {A}
    blocks = site.close(ticket, keep=True)
    assert blocks == site.pool.match(hashes_of(1, 2, 3))
    assert [site.pool.refs(block) for block in blocks] == [1, 1, 1]
    site.pool.unpin(blocks)
    assert (site.pool.cached, site.pool.pinned, site.pool.promised_total) == (3, 0, 0)
    site.check()


def test_a_block_is_taken_under_the_promise_when_its_first_chunk_comes(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    assert (site.pool.free, site.pool.promised(A)) == (16, 2)
    target = site.ledger.admit_chunk(FakeChunk(A, 1, 8, 8))
    assert target == Target(0, 8, 16)
    assert (site.pool.free, site.pool.promised(A), ticket.unlanded) == (15, 1, 1)


def test_a_ticket_with_nothing_to_bring_is_complete_at_once(site: Site) -> None:
    site.close(site.open(A, 1), keep=False)
    ticket = site.open(A, 1)
    site.receive(A, 0)
    site.close(ticket)
    again = site.open(B, 1)
    assert again.complete
    assert site.changed() == {B}
    site.close(again)
    site.check()


def test_half_a_block_is_not_published(site: Site) -> None:
    ticket = site.open(A, 1)
    chunk = FakeChunk(A, 0, HALF)
    site.ledger.admit_chunk(chunk)
    site.ledger.verified(chunk)
    assert (site.pool.hashes(), ticket.complete) == ([], False)
    assert site.ledger.report(ticket).ranges == ((0, HALF, 2 * HALF),)
    site.close(ticket)
    assert (site.pool.free, site.pool.hashes()) == (16, [])
    site.check()


def test_received_but_not_verified_is_not_published(site: Site) -> None:
    site.open(A, 1)
    site.ledger.admit_chunk(FakeChunk(A, 0, 0, 2 * HALF))
    assert site.pool.hashes() == []


def test_a_report_merges_ranges(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    for offset, length in ((0, 8), (16, 8), (8, 8), (40, 4)):
        chunk = FakeChunk(A, 1, offset, length)
        site.ledger.admit_chunk(chunk)
        site.ledger.verified(chunk)
    report = site.ledger.report(ticket)
    assert report.ranges == ((1, 0, 24), (1, 40, 44))
    assert (report.published, report.needs, report.complete) == (0, (), False)


def test_a_full_block_that_waits_for_its_turn_is_in_the_report(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    site.receive(A, 1)
    assert site.ledger.report(ticket).ranges == ((1, 0, 2 * HALF),)


def test_groups_have_their_own_bytes() -> None:
    site = Site(layout=TWO_GROUPS)
    ticket = site.open(A, 1)
    second = FakeChunk(A, 0, 8, 24, group=7)
    assert site.ledger.admit_chunk(second) == Target(0, 72, 96)
    site.ledger.verified(second)
    whole = FakeChunk(A, 0, 0, 64)
    assert site.ledger.admit_chunk(whole) == Target(0, 0, 64)
    site.ledger.verified(whole)
    assert not ticket.complete
    rest = FakeChunk(A, 0, 0, 8, group=7)
    site.ledger.admit_chunk(rest)
    site.ledger.verified(rest)
    assert ticket.complete


# --- chunks that get no memory ------------------------------------------------------------------------------


def test_unknown_and_closed_tickets_are_gone(site: Site) -> None:
    assert site.ledger.admit_chunk(FakeChunk(A, 0)) is GONE
    site.close(site.open(A, 1))
    assert site.ledger.admit_chunk(FakeChunk(A, 0)) is GONE
    assert site.ledger.admit_chunk(FakeChunk(A, 99, group=3)) is GONE


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (FakeChunk(A, 0, group=1), "group 1 is not in the layout"),
        (FakeChunk(A, 0, shard=1), "shard 1 of group 0"),
        (FakeChunk(A, -1), "block -1 is not one of the ticket's 2"),
        (FakeChunk(A, 2), "block 2 is not one of the ticket's 2"),
        (FakeChunk(A, 0, -1), "bytes -1 to 31"),
        (FakeChunk(A, 0, 0, 0), "bytes 0 to 0"),
        (FakeChunk(A, 0, 8, -4), "bytes 8 to 4"),
        (FakeChunk(A, 0, HALF + 1), "bytes 33 to 65 are not in a block's 64"),
        (FakeChunk(A, 0, 0, 2**40), "not in a block's 64"),
    ],
)
def test_a_place_that_is_not_there_is_refused_and_changes_nothing(
    site: Site, bad: FakeChunk, says: str
) -> None:
    ticket = site.open(A, 1, 2)
    with pytest.raises(BadChunk, match=says):
        site.ledger.admit_chunk(bad)
    assert (site.pool.free, site.pool.promised(A), ticket.landings) == (16, 2, {})
    site.check()
    site.receive(A, 0, 1)
    assert ticket.complete


def test_a_group_cannot_reach_into_the_next() -> None:
    site = Site(layout=TWO_GROUPS)
    site.open(A, 1)
    with pytest.raises(BadChunk):
        site.ledger.admit_chunk(FakeChunk(A, 0, HALF, HALF + 1))
    with pytest.raises(BadChunk):
        site.ledger.admit_chunk(FakeChunk(A, 0, 1, 32, group=7))


def test_a_published_block_takes_no_chunk(site: Site) -> None:
    site.open(A, 1, 2)
    site.receive(A, 0)
    assert site.ledger.admit_chunk(FakeChunk(A, 0)) is SCRATCH
    site.receive(A, 1)
    assert site.ledger.admit_chunk(FakeChunk(A, 1)) is SCRATCH  # complete, not closed


def test_a_block_that_was_there_takes_no_chunk(site: Site) -> None:
    first = site.open(A, 1)
    site.receive(A, 0)
    site.close(first)
    ticket = site.open(B, 1, 2)
    assert ticket.have == 1
    assert site.ledger.admit_chunk(FakeChunk(B, 0)) is SCRATCH


def test_a_full_block_takes_no_chunk(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    site.receive(A, 1)
    assert site.ledger.admit_chunk(FakeChunk(A, 1)) is SCRATCH
    assert ticket.needs == {}


def test_bytes_of_an_awaited_block_land_for_the_ticket_that_brings_it(site: Site) -> None:
    brings, awaits = site.open(A, 1), site.open(B, 1, 2)
    site.receive(B, 0)
    assert (brings.published, awaits.published) == (1, 1)
    assert brings.complete
    assert isinstance(site.ledger.admit_chunk(FakeChunk(B, 1)), Target)


def test_bytes_that_two_tickets_bring_at_once_land_once(site: Site) -> None:
    site.open(A, 1)
    site.open(B, 1)
    assert isinstance(site.ledger.admit_chunk(FakeChunk(B, 0)), Target)
    assert site.ledger.admit_chunk(FakeChunk(A, 0)) is SCRATCH
    site.ledger.check()


def test_a_verified_range_takes_no_second_chunk(site: Site) -> None:
    ticket = site.open(A, 1)
    chunk = FakeChunk(A, 0)
    site.ledger.admit_chunk(chunk)
    site.ledger.verified(chunk)
    assert site.ledger.admit_chunk(chunk) is SCRATCH
    assert site.ledger.admit_chunk(FakeChunk(A, 0, 4, 8)) is SCRATCH
    assert site.changed() == set()
    assert ticket.needs == {}


@pytest.mark.parametrize(("offset", "length"), [(16, HALF), (0, 2 * HALF), (31, 2)])
def test_a_chunk_partly_verified_goes_to_scratch_and_is_needed_again(
    site: Site, offset: int, length: int
) -> None:
    ticket = site.open(A, 1)
    chunk = FakeChunk(A, 0)
    site.ledger.admit_chunk(chunk)
    site.ledger.verified(chunk)
    assert site.ledger.admit_chunk(FakeChunk(A, 0, offset, length)) is SCRATCH
    assert site.changed() == {A}
    report = site.ledger.report(ticket)
    assert (report.ranges, report.needs) == (((0, 0, HALF),), ((0, 1),))
    assert site.ledger.report(ticket).needs == ()


@pytest.mark.parametrize(("offset", "length"), [(0, HALF), (HALF - 1, HALF), (0, 2 * HALF), (8, 8)])
def test_a_range_being_received_takes_no_second_chunk(site: Site, offset: int, length: int) -> None:
    site.open(A, 1)
    site.ledger.admit_chunk(FakeChunk(A, 0))
    assert site.ledger.admit_chunk(FakeChunk(A, 0, offset, length)) is SCRATCH
    assert isinstance(site.ledger.admit_chunk(FakeChunk(A, 0, HALF, HALF)), Target)


def test_a_range_before_one_being_received_is_free(site: Site) -> None:
    site.open(A, 1)
    site.ledger.admit_chunk(FakeChunk(A, 0, HALF))
    assert isinstance(site.ledger.admit_chunk(FakeChunk(A, 0)), Target)


def test_no_byte_is_lent_twice() -> None:
    pool = BlockPool(1)
    loans = Loans(pool)
    ticket = Ticket(A, "rid", hashes_of(1), [], "key")
    landing = Landing(pool.take(1)[0], ticket)
    assert loans.lend(FakeChunk(A, 0), landing, 0, HALF) == Target(0, 0, HALF)
    with pytest.raises(InvariantBroken, match="lent twice"):
        loans.lend(FakeChunk(A, 0, 8), landing, 8, 8 + HALF)
    assert (len(loans), pool.refs(0)) == (1, 1)


def test_a_block_that_is_given_up_is_held_until_its_last_lent_range_is_back() -> None:
    pool = BlockPool(1)
    loans = Loans(pool)
    ticket = Ticket(A, "rid", hashes_of(1), [], "key")
    landing = Landing(pool.take(1)[0], ticket)
    first, second = FakeChunk(A, 0), FakeChunk(A, 0, HALF)
    loans.lend(first, landing, 0, HALF)
    loans.lend(second, landing, HALF, 2 * HALF)
    loans.let_go(landing)
    loans.take_back(second)
    loans.check()
    assert (pool.refs(0), pool.free) == (1, 0)
    loans.take_back(first)
    assert (pool.refs(0), pool.free) == (0, 1)


def test_a_block_of_which_nothing_is_lent_is_free_when_it_is_given_up() -> None:
    pool = BlockPool(1)
    loans = Loans(pool)
    landing = Landing(pool.take(1)[0], Ticket(A, "rid", hashes_of(1), [], "key"))
    loans.lend(FakeChunk(A, 0), landing, 0, HALF)
    loans.take_back(FakeChunk(A, 0))
    assert pool.refs(0) == 1
    loans.let_go(landing)
    assert (pool.refs(0), pool.free) == (0, 1)


def test_a_refused_twin_is_needed_again_only_if_the_first_is_lost(site: Site) -> None:
    ticket = site.open(A, 1)
    chunk, wider = FakeChunk(A, 0), FakeChunk(A, 0, 0, HALF + 8)
    site.ledger.admit_chunk(chunk)
    site.ledger.admit_chunk(chunk)
    site.ledger.verified(chunk)
    assert (site.ledger.report(ticket).needs, site.changed()) == ((), set())
    second = FakeChunk(A, 0, HALF)
    site.ledger.admit_chunk(second)
    assert site.ledger.admit_chunk(second) is SCRATCH
    site.ledger.broken(second)
    assert site.changed() == {A}
    assert site.ledger.report(ticket).needs == ((0, 1),)
    site.ledger.admit_chunk(second)
    assert site.ledger.admit_chunk(wider) is SCRATCH
    site.ledger.verified(second)
    assert ticket.complete
    assert site.ledger.report(ticket).needs == ()


def test_a_refused_wider_chunk_is_needed_again_for_its_rest(site: Site) -> None:
    ticket = site.open(A, 1)
    chunk = FakeChunk(A, 0)
    site.ledger.admit_chunk(chunk)
    assert site.ledger.admit_chunk(FakeChunk(A, 0, 0, 2 * HALF)) is SCRATCH
    assert ticket.needs == {}
    site.ledger.verified(chunk)
    assert site.ledger.report(ticket).needs == ((0, 1),)


def test_a_refused_chunk_is_judged_when_all_it_met_are_back(site: Site) -> None:
    ticket = site.open(A, 1)
    left, right = FakeChunk(A, 0), FakeChunk(A, 0, HALF, 16)
    site.ledger.admit_chunk(left)
    site.ledger.admit_chunk(right)
    assert site.ledger.admit_chunk(FakeChunk(A, 0, 16, HALF)) is SCRATCH
    site.ledger.verified(left)
    assert ticket.needs == {}
    site.ledger.broken(right)
    assert list(ticket.needs) == [0]


def test_a_refused_chunk_is_judged_once(site: Site) -> None:
    ticket = site.open(A, 1)
    chunk = FakeChunk(A, 0)
    site.ledger.admit_chunk(chunk)
    site.ledger.admit_chunk(chunk)
    site.ledger.broken(chunk)
    assert site.ledger.report(ticket).needs == ((0, 1),)
    other = FakeChunk(A, 0, HALF, 8)
    site.ledger.admit_chunk(other)
    site.ledger.broken(other)
    assert ticket.needs == {}


def test_a_full_block_is_not_needed_any_more(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    chunk = FakeChunk(A, 1, 0, 2 * HALF)
    site.ledger.admit_chunk(chunk)
    site.ledger.damaged(chunk)
    site.ledger.admit_chunk(chunk)
    site.ledger.verified(chunk)
    assert site.ledger.report(ticket).needs == ()


# --- damage and broken connections --------------------------------------------------------------------------


def test_a_damaged_chunk_is_asked_for_again(site: Site) -> None:
    ticket = site.open(A, 1, 2)
    chunk = FakeChunk(A, 1)
    site.ledger.admit_chunk(chunk)
    site.ledger.damaged(chunk)
    assert site.changed() == {A}
    report = site.ledger.report(ticket)
    assert (report.ranges, report.needs) == ((), ((1, 2),))
    assert isinstance(site.ledger.admit_chunk(chunk), Target)
    site.ledger.verified(chunk)
    site.check()
    assert site.pool.hashes() == []


def test_a_broken_chunk_gives_its_range_back(site: Site) -> None:
    ticket = site.open(A, 1)
    chunk = FakeChunk(A, 0)
    site.ledger.admit_chunk(chunk)
    site.ledger.broken(chunk)
    assert (ticket.needs, site.changed()) == ({}, set())
    assert isinstance(site.ledger.admit_chunk(FakeChunk(A, 0, 8, 8)), Target)
    assert site.ledger.report(ticket).ranges == ()


@pytest.mark.parametrize("end", ["verified", "damaged", "broken"])
def test_memory_comes_back_once(site: Site, end: str) -> None:
    site.open(A, 1)
    chunk = FakeChunk(A, 0)
    site.ledger.admit_chunk(chunk)
    getattr(site.ledger, end)(chunk)
    with pytest.raises(InvariantBroken, match="no memory was lent"):
        getattr(site.ledger, end)(chunk)
    with pytest.raises(InvariantBroken):
        site.ledger.verified(FakeChunk(A, 0, 0, 4))


@pytest.mark.parametrize("end", ["verified", "damaged", "broken"])
def test_memory_that_is_out_is_not_reused(site: Site, end: str) -> None:
    """B1: the ticket ends inside a chunk; the block stays out of everyone's hands until the chunk does."""
    ticket = site.open(A, 1)
    chunk = FakeChunk(A, 0)
    target = site.ledger.admit_chunk(chunk)
    assert isinstance(target, Target)
    site.close(ticket)
    others = site.pool.take(site.pool.available)
    assert target.block not in others
    assert len(others) == 15
    site.check()
    getattr(site.ledger, end)(chunk)
    assert site.pool.take(1) == [target.block]
    assert (site.pool.hashes(), site.changed()) == ([], set())
    site.check()


def test_a_new_ticket_for_the_same_blocks_gets_other_memory(site: Site) -> None:
    old = site.open(A, 1)
    late = FakeChunk(A, 0)
    first = site.ledger.admit_chunk(late)
    site.close(old)
    ticket = site.open(B, 1)
    second = site.ledger.admit_chunk(FakeChunk(B, 0))
    assert isinstance(first, Target)
    assert isinstance(second, Target)
    assert first.block != second.block
    site.ledger.verified(late)  # of the old ticket: says nothing of the new one
    assert site.ledger.report(ticket).ranges == ()
    assert site.ledger.admit_chunk(late) is GONE
    site.check()
