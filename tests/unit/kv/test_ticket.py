"""The two tables: what is listed, and that nothing else is allowed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from shared.errors import InvariantBroken
from shared.kv.ticket import (
    BLOCK_TABLE,
    TICKET_TABLE,
    BlockEvent,
    BlockState,
    Landing,
    Ticket,
    TicketEvent,
    TicketState,
)
from tests.support.kv_chains import hashes_of


def ticket(*states: BlockState) -> Ticket:
    made = Ticket(b"t", "rid", hashes_of(*range(len(states))), [], "key")
    made.begin(states)
    return made


@pytest.mark.parametrize(("state", "event"), list(itertools.product(BlockState, BlockEvent)))
def test_block_table(state: BlockState, event: BlockEvent) -> None:
    made = ticket(state)
    after = BLOCK_TABLE.get((state, event))
    if after is None:
        with pytest.raises(InvariantBroken, match=f"is {state.value} and cannot {event.value}"):
            made.move_block(0, event)
        assert made.block_state(0) is state
    else:
        made.move_block(0, event)
        assert made.block_state(0) is after


@pytest.mark.parametrize(("state", "event"), list(itertools.product(TicketState, TicketEvent)))
def test_ticket_table(state: TicketState, event: TicketEvent) -> None:
    made = ticket(BlockState.WANTED)
    made.state = state
    after = TICKET_TABLE.get((state, event))
    if after is None:
        with pytest.raises(InvariantBroken, match=f"is {state.value} and cannot {event.value}"):
            made.move(event)
        assert made.state is state
    else:
        made.move(event)
        assert made.state is after


def test_a_held_block_never_changes() -> None:
    assert not [event for state, event in BLOCK_TABLE if state is BlockState.HELD]


def test_a_closed_ticket_takes_nothing() -> None:
    assert not [event for state, event in TICKET_TABLE if state is TicketState.CLOSED]


def test_memory_is_lent_only_to_wanted_and_landing_blocks() -> None:
    assert {state for state, event in BLOCK_TABLE if event is BlockEvent.LEND} == {
        BlockState.WANTED,
        BlockState.LANDING,
    }


def test_published_only_when_full_or_found() -> None:
    roads = {key for key, after in BLOCK_TABLE.items() if after is BlockState.HELD}
    assert {event for _, event in roads} == {BlockEvent.PUBLISH, BlockEvent.FOUND}
    assert {state for state, event in roads if event is BlockEvent.PUBLISH} == {BlockState.FULL}


def test_unlanded_counts_wanted_blocks() -> None:
    made = ticket(BlockState.WANTED, BlockState.AWAITED, BlockState.WANTED)
    assert (made.unlanded, made.to_come) == (2, 3)
    made.move_block(0, BlockEvent.LEND)
    assert made.unlanded == 1
    made.move_block(1, BlockEvent.CARRY)
    assert made.unlanded == 2
    made.move_block(0, BlockEvent.YIELD)
    assert made.unlanded == 2


def test_leading_blocks_are_held_from_the_start() -> None:
    made = Ticket(b"t", "rid", hashes_of(1, 2), [5], "key")
    made.begin([BlockState.WANTED])
    assert (made.have, made.published, made.upto) == (1, 1, 2)
    assert made.block_state(0) is BlockState.HELD
    assert made.block_state(1) is BlockState.WANTED


@pytest.mark.parametrize(
    "damage",
    [
        lambda made: made.blocks.append(9),
        lambda made: made.blocks.clear(),
        lambda made: made.landings.clear(),
        lambda made: made.landings.__setitem__(2, Landing(9, made)),
        lambda made: setattr(made, "_unlanded", 5),
        lambda made: setattr(made, "state", TicketState.COMPLETE),
        lambda made: setattr(made.landings[1], "owner", None),
    ],
)
def test_check_sees_damage(damage: Callable[[Ticket], object]) -> None:
    made = Ticket(b"t", "rid", hashes_of(1, 2, 3), [4], "key")
    made.begin([BlockState.LANDING, BlockState.WANTED])
    made.landings[1] = Landing(5, made)
    made.check()
    damage(made)
    with pytest.raises(InvariantBroken):
        made.check()
