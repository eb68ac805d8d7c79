"""The tables of phases and legs: complete where they have to be, closed against everything else, drawn for
the docs.
"""

from itertools import product

import pytest

from services.router.diagram import diagrams
from services.router.legs import DECODER_TABLE, PREFILL_TABLE, Leg, LegEvent, LegState
from services.router.phases import TABLE, Event, Phase, after
from shared.errors import InvariantBroken, UnexpectedMessage
from shared.wire.messages import Role

LIVE = [phase for phase in Phase if phase not in (Phase.CLOSING, Phase.ENDED)]


def leg(role: Role, state: LegState) -> Leg:
    return Leg(role, "node", term=1, base=8, asked_at=0.0, state=state)


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_an_unlisted_event_of_a_request_is_a_bug(phase: Phase, event: Event) -> None:
    if (phase, event) in TABLE:
        assert after(phase, event) is TABLE[phase, event]
    else:
        with pytest.raises(InvariantBroken, match=event):
            after(phase, event)


def test_every_live_phase_can_end_and_nothing_follows_the_end() -> None:
    assert all(TABLE[phase, Event.END] is Phase.ENDED for phase in LIVE)
    assert not [pair for pair in TABLE if pair[0] is Phase.ENDED]


def test_every_phase_is_reached() -> None:
    reached = {Phase.PLACING}
    for _ in Phase:
        reached |= {to for (phase, _), to in TABLE.items() if phase in reached}
    assert reached == set(Phase)


def test_main_decode_can_be_named_owner_in_every_live_phase() -> None:
    assert all((phase, Event.CUT) in TABLE for phase in LIVE)


@pytest.mark.parametrize("role", [Role.MAIN, Role.RELAY, Role.PREFILL])
@pytest.mark.parametrize(("state", "event"), list(product(LegState, LegEvent)))
def test_an_unlisted_event_of_a_leg_is_refused_and_changes_nothing(
    role: Role, state: LegState, event: LegEvent
) -> None:
    table = PREFILL_TABLE if role is Role.PREFILL else DECODER_TABLE
    if role is Role.PREFILL and state in (LegState.FILLING, LegState.OWNER):
        return
    one = leg(role, state)
    if (state, event) in table:
        one.step(event)
        assert one.state is table[state, event]
    else:
        with pytest.raises(UnexpectedMessage):
            one.step(event)
        assert one.state is state


@pytest.mark.parametrize("table", [DECODER_TABLE, PREFILL_TABLE])
def test_every_leg_can_be_dropped_at_any_time(table: dict[tuple[LegState, LegEvent], LegState]) -> None:
    states = {state for state, _ in table}
    assert all(table[state, LegEvent.DROP] is LegState.OUT for state in states)


def test_the_diagrams_show_every_arrow() -> None:
    drawn = "\n".join(diagrams().values())
    for (phase, event), to in TABLE.items():
        line = next(line for line in drawn.splitlines() if line.startswith(f"    {phase} --> {to}: "))
        assert event in line
