"""One test for each thing that the ledger must see. Blocks have 64 bytes, chunks half a block unless said."""

from __future__ import annotations

import pytest

from shared.errors import BadChunk, InvariantBroken
from shared.kv.layout import KvLayout
from shared.kv.ledger import GONE, SCRATCH, Ledger, Target, Ticket
from shared.kv.loans import Loans
from shared.kv.pool import BlockPool
from shared.kv.report import runs
from shared.kv.ticket import BlockState, Landing
from tests.support.kv_chains import HALF, LAYOUT, TWO_GROUPS, FakeChunk, hash_of, hashes_of

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


class Site:
    """A pool with its ledger."""

    def __init__(self, blocks: int = 16, layout: KvLayout = LAYOUT) -> None:
        self.pool = BlockPool(blocks)
        self.ledger = Ledger(self.pool, layout)

    def open(self, ticket: bytes, *path: int, yields: bool = False) -> Ticket:
        """Admit and open as a worker does: match, pin, promise what is missing and not expected."""
        hashes = hashes_of(*path)
        blocks = self.pool.match(hashes)
        self.pool.pin(blocks)
        expected = self.ledger.on_its_way(hashes, len(blocks), yields=yields)
        self.pool.promise(ticket, len(hashes) - len(blocks) - expected)
        return self.ledger.open(ticket, ticket, hashes, blocks, ticket, yields=yields)

    def close(self, ticket: Ticket, *, keep: bool = False) -> list[int]:
        blocks = self.ledger.close(ticket)
        self.pool.unpromise(ticket.promise)
        if not keep:
            self.pool.unpin(blocks)
        return blocks

    def receive(self, ticket: bytes, *blocks: int) -> None:
        """Whole blocks arrive, each as two good chunks."""
        for block in blocks:
            for offset in (0, HALF):
                chunk = FakeChunk(ticket, block, offset)
                assert isinstance(self.ledger.admit_chunk(chunk), Target)
                self.ledger.verified(chunk)
                self.check()

    def changed(self) -> set[bytes]:
        return {ticket.ticket for ticket in self.ledger.take_changed()}

    def check(self) -> None:
        self.pool.check()
        self.ledger.check()


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
    assert (len(loans), pool.refs(0)) == (1, 2)


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
    site.pool.unpin([target.block])
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
