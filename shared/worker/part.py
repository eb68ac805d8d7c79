"""One request at a decoder: what it knows of the log, which blocks it holds, how far it may go.

The table says what each thing that happens means at each stage; `decoding` acts on it. No clock, no
messages made here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shared.wire.messages import Do, First, Purpose, Rid, TokenLogprob, TokenRow
from shared.worker.asked import Asked
from shared.worker.known import Known


class Stage(enum.Enum):
    LANDING = "landing"  # its ticket is open
    READY = "ready"  # every block is here and pinned
    EXTENDING = "extending"  # in the engine as a standby
    OWNING = "owning"  # in the engine, drawing
    ENDED = "ended"  # it drew the last id; kept to repeat ids until it is released


class Told(enum.Enum):
    HOLD = "hold"
    EXTEND = "extend"
    OWN = "own"
    FIRST = "first"  # P's first id reached this relay
    LANDED = "landed"
    FINISHED = "finished"  # the engine drew the last id


class Act(enum.Enum):
    KEEP = "keep"  # the ids, or the demand, are kept for later
    WAIT_TO_OWN = "wait to own"  # own once landed, or at once where nothing will be sent
    START = "start"  # do what was asked for while the blocks were on their way
    EXTEND = "extend"
    OWN = "own"
    OWN_FIRST = "own first"  # a relay's run begins with P's id
    REPEAT = "repeat"  # own under a new term: ids after the log's end are sent again
    CONFIRM = "confirm"  # the log may hold nothing that an owner has not sent
    END = "end"


TABLE: dict[tuple[Stage, Told], Act] = {
    (Stage.LANDING, Told.HOLD): Act.KEEP,
    (Stage.LANDING, Told.EXTEND): Act.KEEP,
    (Stage.LANDING, Told.OWN): Act.WAIT_TO_OWN,
    (Stage.LANDING, Told.FIRST): Act.KEEP,
    (Stage.LANDING, Told.LANDED): Act.START,
    (Stage.READY, Told.HOLD): Act.KEEP,
    (Stage.READY, Told.EXTEND): Act.EXTEND,
    (Stage.READY, Told.OWN): Act.OWN,
    (Stage.READY, Told.FIRST): Act.OWN_FIRST,
    (Stage.EXTENDING, Told.HOLD): Act.KEEP,
    (Stage.EXTENDING, Told.EXTEND): Act.EXTEND,
    (Stage.EXTENDING, Told.OWN): Act.OWN,
    (Stage.EXTENDING, Told.FIRST): Act.OWN_FIRST,
    (Stage.OWNING, Told.HOLD): Act.CONFIRM,
    (Stage.OWNING, Told.EXTEND): Act.CONFIRM,
    (Stage.OWNING, Told.OWN): Act.REPEAT,
    (Stage.OWNING, Told.FIRST): Act.KEEP,
    (Stage.OWNING, Told.FINISHED): Act.END,
    (Stage.ENDED, Told.HOLD): Act.CONFIRM,
    (Stage.ENDED, Told.EXTEND): Act.CONFIRM,
    (Stage.ENDED, Told.OWN): Act.REPEAT,
    (Stage.ENDED, Told.FIRST): Act.KEEP,
}

FED = {Do.HOLD: Told.HOLD, Do.EXTEND: Told.EXTEND, Do.OWN: Told.OWN}


@dataclass(slots=True)
class Part:
    """One request's state here."""

    ask: Asked
    number: int  # by age: lower is older
    purpose: Purpose
    known: Known
    upto: int  # full blocks that the ticket brings
    stage: Stage
    ticket: bytes = b""
    blocks: list[int] = field(default_factory=list)  # leading published ones, pinned here while READY
    seq: int | None = None
    given: int = 0  # ids that the engine knows
    want: Do = Do.HOLD  # the strongest demand while LANDING
    fed_term: int = 0  # of the newest Feed
    own_term: int = 0  # 0: never owned
    catching: tuple[int, int] | None = None  # (term, log length) of the newest extend Feed not yet answered
    first: First | None = None
    made: int = 0  # ids sent as owner
    orphan: bool = False  # its router's session ended; nobody has asked for it since
    finished: tuple[int, str] | None = None  # (log length, reason)
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)  # by position, of own ids
    extended_at: float = 0.0  # when the catching-up that goes on began
    owned_at: float = 0.0  # when it was made owner; 0.0: never
    first_at: float = 0.0  # when it drew its first id as that
    ended_at: float = 0.0  # when it drew the last one

    @property
    def rid(self) -> Rid:
        return self.ask.rid

    @property
    def term(self) -> int:
        """The newest term that named this part."""
        return max(self.ask.term, self.own_term)

    @property
    def growth(self) -> tuple[str, Rid, int]:
        """The pool's key for blocks promised to its growth."""
        return ("grow", self.ask.rid, self.number)

    @property
    def owns(self) -> bool:
        return self.stage in (Stage.OWNING, Stage.ENDED)

    def row(self, start: int, end: int) -> TokenRow:
        """Its ids [start, end) for the router, under the term it owns by."""
        ids = tuple(self.known.ids[start:end])
        logprobs = None
        if all(at in self.logprobs for at in range(start, end)):
            logprobs = tuple(self.logprobs[at] for at in range(start, end))
        return TokenRow(self.rid, self.own_term, start, ids, logprobs)
