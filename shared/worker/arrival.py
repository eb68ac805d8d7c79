"""One open ticket as its receiver reports it, and what becomes of it. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.kv.ticket import Ticket
from shared.wire.messages import Rid


@dataclass(slots=True)
class Arrival:
    """One open ticket and what its sender has been told."""

    ticket: bytes
    rid: Rid
    router: str
    book: Ticket
    enough: int  # leading blocks at which it counts as complete: all of them, or an alignment's prompt
    since: float = 0.0  # when it was opened
    trace: str = ""
    sender: str | None = None  # the node whose chunks came last
    given_up: bool = False  # its sender has dropped it, or was lost: nobody else sends under this ticket
    unreported: int = 0  # bytes verified since the last report
    landed_bytes: int = 0
    landed_at: float = float("-inf")  # when bytes were last verified
    damaged: int = 0
    asked: set[int] = field(default_factory=set)  # blocks asked for by `needs`
    asked_at: float = 0  # bytes that had come in here when they were
    waits: int = 0  # how often asking again was put off


@dataclass(frozen=True, slots=True)
class Landed:
    """Every block of the ticket is published. The pins of `blocks`, all of its chain, pass to the receiver
    of this.
    """

    rid: Rid
    ticket: bytes
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spoiled:
    """The ticket cannot be completed by its sender. It is still open."""

    rid: Rid
    ticket: bytes
    detail: str
