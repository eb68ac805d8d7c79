"""One worker's part in a request, as the router sees it: a (state, event) table each for prefill and
decoders.

A leg is a record: it sends nothing. Events are the worker's answers, already matched to the leg by node,
term and ticket, and the router's own acts. An answer that the table does not list is the peer's fault: it
is ignored and counted.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shared.errors import UnexpectedMessage
from shared.wire.messages import Role, TransferClass


class LegState(enum.StrEnum):
    ASKED = "asked"  # Admit or Prefill is on its way, no answer yet
    FILLING = "filling"  # a decoder that lacks blocks
    READY = "ready"  # a decoder with every block; a prefill whose id is drawn
    OWNER = "owner"  # a decoder that draws
    OUT = "out"  # has no part in the request any more


class LegEvent(enum.StrEnum):
    ADMITTED = "admitted"  # with blocks missing
    ADMITTED_WHOLE = "admitted_whole"  # with none
    COMPLETE = "complete"
    DREW = "drew"  # prefill's id was seen
    OWN = "own"  # named owner, or has begun to draw after First
    READMIT = "readmit"  # asked again: its old ticket is gone
    DROP = "drop"  # released, refused, failed, lost or timed out


_S, _E = LegState, LegEvent

DECODER_TABLE: dict[tuple[LegState, LegEvent], LegState] = {
    (_S.ASKED, _E.ADMITTED): _S.FILLING,
    (_S.ASKED, _E.ADMITTED_WHOLE): _S.READY,
    (_S.ASKED, _E.READMIT): _S.ASKED,
    (_S.ASKED, _E.DROP): _S.OUT,
    (_S.FILLING, _E.COMPLETE): _S.READY,
    (_S.FILLING, _E.OWN): _S.OWNER,  # main decode alone: it extends over what it lacks
    (_S.FILLING, _E.READMIT): _S.ASKED,
    (_S.FILLING, _E.DROP): _S.OUT,
    (_S.READY, _E.COMPLETE): _S.READY,
    (_S.READY, _E.OWN): _S.OWNER,
    (_S.READY, _E.DROP): _S.OUT,
    (_S.OWNER, _E.COMPLETE): _S.OWNER,
    (_S.OWNER, _E.OWN): _S.OWNER,
    (_S.OWNER, _E.DROP): _S.OUT,
    (_S.OUT, _E.DROP): _S.OUT,
}

PREFILL_TABLE: dict[tuple[LegState, LegEvent], LegState] = {
    (_S.ASKED, _E.DREW): _S.READY,
    (_S.ASKED, _E.DROP): _S.OUT,
    (_S.READY, _E.DREW): _S.READY,
    (_S.READY, _E.DROP): _S.OUT,
    (_S.OUT, _E.DROP): _S.OUT,
}


@dataclass(slots=True, eq=False)
class Leg:
    """`base` is how many leading ids of the log the worker was given at admission; its ticket is for their
    full blocks.
    """

    role: Role
    node: str
    term: int  # of its Admit or Prefill
    base: int
    asked_at: float
    state: LegState = LegState.ASKED
    owns: int = 0  # the term under which it draws, 0: none
    ticket: bytes = b""
    have: int = 0
    expected: int = 0
    upto: int = 0
    last_hash: bytes = b""
    incarnation: int = 0
    fed: int = 0  # length of the log that it has been told
    source: Leg | None = None  # who sends to it: the Attach for its present ticket went there
    booked: str = ""  # node whose books hold that transfer's bytes
    source_tried: bool = False  # its present ticket was given to a sender: another one needs another ticket
    cls: TransferClass = TransferClass.UNCOVERED
    alone: bool = False  # it was told to begin at once where it lacks little
    holds_rid: bool = (
        True  # False: it only sends blocks that it has anyway, and was never told of the request
    )
    bare: bool = False  # it answered Missing: it is asked for blocks no more
    armed: bool = False  # a relay that will start by prefill's First
    ends_at: float = 0.0  # when a prefill was to have drawn, as estimated when it was asked

    @property
    def live(self) -> bool:
        return self.state is not LegState.OUT

    @property
    def complete(self) -> bool:
        """Has KV of its base, so that it can draw or send."""
        return self.state in (LegState.READY, LegState.OWNER)

    def step(self, event: LegEvent) -> None:
        """Move by the role's table. Raises UnexpectedMessage where it lists nothing; the state then stays."""
        table = PREFILL_TABLE if self.role is Role.PREFILL else DECODER_TABLE
        after = table.get((self.state, event))
        if after is None:
            raise UnexpectedMessage(f"{event} from {self.role} {self.node}, which is {self.state}")
        self.state = after
