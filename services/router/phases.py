"""Who draws a request's ids: one table of (phase, event). A pair that is not listed is a bug here, not bad
input.

What peers say is checked before it becomes an event (by term, ticket and the leg's own table).
"""

from __future__ import annotations

import enum

from shared.errors import InvariantBroken


class Phase(enum.StrEnum):
    PLACING = "placing"  # nobody was named to draw yet, or the prefill that was is gone
    PREFILLING = "prefilling"  # prefill is to draw the log's next id
    PAUSED = "paused"  # ids are there, nobody draws: the next cut names an owner
    RELAYING = "relaying"  # a relay draws
    CATCHING_UP = "catching_up"  # a relay draws, main decode extends over what it was fed
    MAIN = "main"  # main decode draws
    CLOSING = "closing"  # the client is served; main decode has still to be offered the prompt (I2)
    ENDED = "ended"


class Event(enum.StrEnum):
    PREFILL = "prefill"  # a prefill was named to draw
    FIRST = "first"  # its id is in the log
    RELAY = "relay"  # a relay has taken over, by its first run or by Feed{own}
    ROUND = "round"  # a catch-up round has begun
    STANDBY_OUT = "standby_out"  # the main decode that caught up is gone
    CUT = "cut"  # main decode was named owner
    OWNER_OUT = "owner_out"  # who drew is gone
    OWE = "owe"  # normal end before main decode has answered
    END = "end"  # nothing more is to be done


TABLE: dict[tuple[Phase, Event], Phase] = {
    (Phase.PLACING, Event.PREFILL): Phase.PREFILLING,
    (Phase.PLACING, Event.RELAY): Phase.RELAYING,
    (Phase.PLACING, Event.CUT): Phase.MAIN,
    (Phase.PREFILLING, Event.PREFILL): Phase.PREFILLING,
    (Phase.PREFILLING, Event.FIRST): Phase.PAUSED,
    (Phase.PREFILLING, Event.RELAY): Phase.RELAYING,
    (Phase.PREFILLING, Event.CUT): Phase.MAIN,
    (Phase.PREFILLING, Event.OWNER_OUT): Phase.PLACING,
    (Phase.PAUSED, Event.PREFILL): Phase.PREFILLING,
    (Phase.PAUSED, Event.RELAY): Phase.RELAYING,
    (Phase.PAUSED, Event.CUT): Phase.MAIN,
    (Phase.RELAYING, Event.RELAY): Phase.RELAYING,
    (Phase.RELAYING, Event.ROUND): Phase.CATCHING_UP,
    (Phase.RELAYING, Event.CUT): Phase.MAIN,
    (Phase.RELAYING, Event.OWNER_OUT): Phase.PAUSED,
    (Phase.CATCHING_UP, Event.ROUND): Phase.CATCHING_UP,
    (Phase.CATCHING_UP, Event.STANDBY_OUT): Phase.RELAYING,
    (Phase.CATCHING_UP, Event.CUT): Phase.MAIN,
    (Phase.CATCHING_UP, Event.OWNER_OUT): Phase.PAUSED,
    (Phase.MAIN, Event.CUT): Phase.MAIN,
    (Phase.MAIN, Event.RELAY): Phase.RELAYING,
    (Phase.MAIN, Event.OWNER_OUT): Phase.PAUSED,
    (Phase.CLOSING, Event.END): Phase.ENDED,
    **{
        (phase, event): after
        for phase in Phase
        if phase not in (Phase.CLOSING, Phase.ENDED)
        for event, after in ((Event.OWE, Phase.CLOSING), (Event.END, Phase.ENDED))
    },
}


def after(phase: Phase, event: Event) -> Phase:
    """The phase that follows. Raises InvariantBroken where the table lists none."""
    found = TABLE.get((phase, event))
    if found is None:
        raise InvariantBroken(f"event {event} in phase {phase}")
    return found
