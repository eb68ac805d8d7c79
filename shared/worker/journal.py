"""One record for each request and each transfer that ended here, for the log, and spans for who traces.
Writes nothing itself."""

from __future__ import annotations

from collections import deque
from typing import Any

from shared.runtime.tracing import Span, is_recorded
from shared.wire.messages import Rid

KEPT = 4096
"""Records that wait to be taken; older ones are dropped."""


class Journal:
    """Records since the last `take`. `now` is the time of the event that is being handled."""

    def __init__(self) -> None:
        self.now = 0.0
        self._records: deque[tuple[str, dict[str, Any]]] = deque(maxlen=KEPT)
        self._spans: deque[Span] = deque(maxlen=KEPT)
        self.tracing = False
        """Whether somebody takes spans."""

    def write(self, event: str, rid: Rid, since: float, outcome: str, **facts: Any) -> None:
        """Something of a request that began at `since` has ended."""
        name = f"{rid.incarnation:x}.{rid.counter}"
        seconds = round(self.now - since, 4)
        record: dict[str, Any] = {"rid": name, "outcome": outcome, "seconds": seconds, **facts}
        self._records.append((event, record))

    def span(
        self, name: str, trace: str, rid: Rid, start: float, end: float, error: str = "", **facts: Any
    ) -> None:
        """A stretch of a request's time here has ended; kept where its trace is recorded."""
        if self.tracing and is_recorded(trace):
            told = {"pdd.rid": f"{rid.incarnation:x}.{rid.counter}"}
            told |= {f"pdd.{key}": value for key, value in facts.items()}
            self._spans.append(Span(name, trace, start, end, told, error))

    def take_spans(self) -> list[Span]:
        """Spans in the order in which they ended, and forget them."""
        taken = list(self._spans)
        self._spans.clear()
        return taken

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """(event, facts) in order, and forget them."""
        taken = list(self._records)
        self._records.clear()
        return taken
