"""A request as its client sees it: when its ids came, from whom, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from services.router.requests import Broken, Done, RequestEvent, Tokens
from shared.errors import ApiError, MeshError
from shared.wire.messages import Rid, Role

KEPT = ("pipeline", "nodes", "md_hit_tokens")
"""What is kept of a request's trace."""


@dataclass(eq=False, slots=True)
class Client:
    """Times are virtual seconds. `outcome`: "" until it ends, then done, refused, broken or cancelled."""

    submitted: float
    prompt: int  # tokens
    tag: str = ""  # whatever the workload calls it
    first: float | None = None
    second: float | None = None
    last: float = 0.0
    stall: float = 0.0  # the longest wait between two ids, from the first on
    got: list[int] = field(default_factory=list)
    relayed: int = 0  # ids drawn by a relay
    outcome: str = ""
    ended: float = 0.0
    error: MeshError | None = None
    cached: int = 0
    rid: Rid | None = None  # None: refused at once
    trace: dict[str, Any] = field(default_factory=dict)

    def take(self, now: float, event: RequestEvent) -> None:
        """What the router says."""
        match event:
            case Tokens(ids=ids, owner=owner):
                self._more(now, ids, relayed=owner is Role.RELAY)
            case Done(cached_tokens=cached, trace=trace):
                self.outcome, self.ended, self.cached = "done", now, cached
                self.trace = {key: trace[key] for key in KEPT}
            case Broken(error=error):
                self.fail(now, error)

    def fail(self, now: float, error: MeshError) -> None:
        """Refused, or ended with an error."""
        shed = isinstance(error, ApiError) and error.status in (429, 503) and not self.made
        self.outcome, self.ended, self.error = "refused" if shed else "broken", now, error

    def _more(self, now: float, ids: tuple[int, ...], *, relayed: bool) -> None:
        if self.first is None:
            self.first = now
        else:
            self.stall = max(self.stall, now - self.last)
        self.got += ids
        if self.second is None and len(self.got) >= 2:
            self.second = now
        self.last = now
        self.relayed += len(ids) * relayed

    @property
    def made(self) -> int:
        """Ids of the answer so far."""
        return len(self.got)

    @property
    def ttft(self) -> float:
        """Seconds to the first id."""
        return float("inf") if self.first is None else self.first - self.submitted

    @property
    def ttst(self) -> float:
        """Seconds to the second id; to the only one where there is no second."""
        if self.second is None and self.outcome == "done" and self.first is not None:
            return self.first - self.submitted
        return float("inf") if self.second is None else self.second - self.submitted

    @property
    def itl(self) -> float:
        """Mean seconds between two ids."""
        if self.first is None or self.made < 2:
            return 0.0
        return (self.last - self.first) / (self.made - 1)
