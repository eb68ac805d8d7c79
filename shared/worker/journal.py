"""One record for each request and each transfer that ended here, for the log. Writes nothing itself."""

from __future__ import annotations

from collections import deque
from typing import Any

from shared.wire.messages import Rid

KEPT = 4096
"""Records that wait to be taken; older ones are dropped."""


class Journal:
    """Records since the last `take`. `now` is the time of the event that is being handled."""

    def __init__(self) -> None:
        self.now = 0.0
        self._records: deque[tuple[str, dict[str, Any]]] = deque(maxlen=KEPT)

    def write(self, event: str, rid: Rid, since: float, outcome: str, **facts: Any) -> None:
        """Something of a request that began at `since` has ended."""
        name = f"{rid.incarnation:x}.{rid.counter}"
        seconds = round(self.now - since, 4)
        record: dict[str, Any] = {"rid": name, "outcome": outcome, "seconds": seconds, **facts}
        self._records.append((event, record))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """(event, facts) in order, and forget them."""
        taken = list(self._records)
        self._records.clear()
        return taken
