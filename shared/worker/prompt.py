"""One Prefill at a worker: how far it is, and what it has still to tell. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.wire.messages import First, Rid, TokenLogprob, TokenRow
from shared.worker.asked import Asked
from shared.worker.sources import SourceState


@dataclass(slots=True)
class Prompt:
    """State of a prefill. `hold` and `attached` say why its blocks are pinned once it is done."""

    ask: Asked
    number: int  # by age: lower is older
    state: SourceState = SourceState.QUEUED
    seq: int | None = None
    found: int = 0  # leading blocks that were seen here while it waited
    cached: int = 0  # leading blocks that were here when it started
    begun_at: float = 0.0  # when its first step was planned; as far as is known
    drawn: tuple[int, TokenLogprob | None] | None = None  # its one id
    scores: list[TokenLogprob] = field(default_factory=list)  # of the prompt's ids but the first, so far
    told: set[bytes] = field(default_factory=set)  # tickets whose relay has its First
    relays: dict[bytes, str] = field(default_factory=dict)  # ticket -> relay to be told
    orphan: bool = False  # its router's session ended
    hold: list[int] = field(default_factory=list)  # pool blocks pinned for an Attach that may come
    attached: bool = False  # main decode has its own pins: only a relay could still want the held ones

    @property
    def rid(self) -> Rid:
        return self.ask.rid

    @property
    def row(self) -> TokenRow | None:
        """The drawn id for the router."""
        if self.drawn is None:
            return None
        id_, logprob = self.drawn
        logprobs = None if logprob is None else (logprob,)
        waited = int(1e3 * (self.begun_at - self.ask.since))
        scores = tuple(self.scores) if self.ask.scores >= 0 else None
        return TokenRow(self.rid, self.ask.term, len(self.ask.ids), (id_,), logprobs, waited, scores)

    def first(self, ticket: bytes) -> First | None:
        """The drawn id for a relay."""
        row = self.row
        return None if row is None else First(ticket, row.rid, row.start, row.ids, row.logprobs)
