"""Which transfer sends a block that several to one node want."""

from __future__ import annotations

import pytest

from shared.wire.messages import Attach, Have, Rid, TransferClass
from shared.worker.carriage import Carriage
from shared.worker.transfer import Transfer

SIZE = 100
UNCOVERED, COVERED, ALIGNMENT, PARKED = TransferClass


class Yard:
    """Transfers of equal chains to nodes."""

    def __init__(self) -> None:
        self.carriage = Carriage()
        self.open: list[Transfer] = []

    def begin(
        self,
        cls: TransferClass,
        upto: int,
        *,
        have: int = 0,
        expected: int = 0,
        target: str = "md1",
        incarnation: int = 7,
    ) -> Transfer:
        number = len(self.open) + 1
        hashes = [bytes([block]) * 16 for block in range(upto)]
        attach = Attach(
            Rid(1, number), target, incarnation, bytes([number]) * 16, have, expected, upto, hashes[-1], cls
        )
        transfer = Transfer(attach, "r", hashes, SIZE, 0.0)
        for block in range(upto):
            transfer.held[block] = block
        self.open.append(transfer)
        self.carriage.begin(transfer)
        return transfer

    def end(self, transfer: Transfer) -> list[Transfer]:
        self.open.remove(transfer)
        return self.carriage.end(transfer, transfer.wanted, self.open)


@pytest.fixture
def yard() -> Yard:
    return Yard()


def test_a_block_has_one_carrier(yard: Yard) -> None:
    first, second = yard.begin(COVERED, 4), yard.begin(COVERED, 6)
    assert (first.wanted, second.wanted, second.left) == ([0, 1, 2, 3], [4, 5], [0, 1, 2, 3])
    assert second.total_bytes == 2 * SIZE


def test_nodes_have_nothing_to_do_with_one_another(yard: Yard) -> None:
    yard.begin(COVERED, 4)
    assert yard.begin(COVERED, 4, target="md2").wanted == [0, 1, 2, 3]


@pytest.mark.parametrize("slow", [ALIGNMENT, PARKED])
def test_an_urgent_transfer_takes_over_what_a_slow_one_has_still_to_send(
    yard: Yard, slow: TransferClass
) -> None:
    first = yard.begin(slow, 4)
    first.next_span(SIZE)
    second = yard.begin(UNCOVERED, 4)
    assert (first.wanted, second.wanted) == ([0], [1, 2, 3])
    assert second.left == [0], "it is on its way"


def test_a_slow_transfer_leaves_all_to_others(yard: Yard) -> None:
    yard.begin(PARKED, 4)
    assert yard.begin(ALIGNMENT, 4).wanted == []
    assert not yard.open[1].sendable


def test_what_is_asked_for_changes_hands_and_what_is_on_its_way_is_not_sent_twice(yard: Yard) -> None:
    first, second = yard.begin(COVERED, 4), yard.begin(UNCOVERED, 4, expected=4)
    first.next_span(SIZE)
    changed = yard.carriage.ask(second, second.want(((0, 4),)))
    assert changed == [first]
    assert (first.wanted, second.wanted) == ([], [0, 1, 2, 3])
    assert second.next_span(SIZE)[0] == 1
    yard.carriage.ask(second, second.want(((0, 1),)))
    assert second.next_span(SIZE)[0] == 0, "asked for again: it was lost"


def test_where_a_carrier_ends_without_a_block_one_that_left_it_takes_it_back(yard: Yard) -> None:
    first = yard.begin(COVERED, 4)
    slow, urgent = yard.begin(PARKED, 4), yard.begin(COVERED, 4)
    first.report(Have(first.ticket, first.rid, published=2))
    assert yard.end(first) == [urgent]
    assert (slow.wanted, urgent.wanted) == ([], [2, 3]), "what has landed is wanted no more"
    assert yard.end(urgent) == [slow]
    assert slow.wanted == [2, 3]
    yard.end(slow)
    assert len(yard.carriage) == 0


def test_a_block_that_landed_and_was_not_published_ends_with_its_ticket(yard: Yard) -> None:
    first, second = yard.begin(COVERED, 4), yard.begin(COVERED, 4)
    first.report(Have(first.ticket, first.rid, published=1, ranges=((2, 0, SIZE), (3, 0, SIZE))))
    assert yard.end(first) == [second]
    assert second.wanted == [1, 2, 3]
    assert second.unsent_bytes == 3 * SIZE


def test_what_an_earlier_process_was_brought_is_not_left_to_that(yard: Yard) -> None:
    first = yard.begin(COVERED, 4)
    first.report(Have(first.ticket, first.rid, published=4))
    second = yard.begin(COVERED, 4, incarnation=8)
    assert second.wanted == [0, 1, 2, 3]
    assert yard.end(first) == []


def test_those_that_bring_what_a_receiver_waits_for_are_known(yard: Yard) -> None:
    first, other = yard.begin(ALIGNMENT, 4), yard.begin(ALIGNMENT, 4, target="md2")
    urgent = yard.begin(UNCOVERED, 6, expected=4)
    assert yard.carriage.awaited(urgent) == [first]
    assert yard.carriage.awaited(first) == yard.carriage.awaited(other) == []
