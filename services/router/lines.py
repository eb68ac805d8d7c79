"""Lines between datacenters as the router sees them: cap, round trip, and what they carry. Knows no
requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """What joins two datacenters."""

    name: str
    between: tuple[str, str]
    rate: float = 0.0  # cap, bytes/s each way; 0: none
    rtt: float = 0.0  # seconds, a first guess


INSIDE = Line("", ("", ""), 1.25e9, 0.0005)
"""What joins two nodes of one datacenter where nothing else is configured: 10 Gbit/s."""

OPEN = Line("", ("", ""), 0.0, 0.001)
"""What joins two datacenters that no line is configured for: no limit."""


class Lines:
    """Finds the line of a pair of datacenters, and its present rate from senders' estimates."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._by_pair: dict[tuple[str, str], Line] = {}
        self._by_name: dict[str, Line] = {}
        self._estimates: dict[str, dict[str, float]] = {}
        self._gains: dict[str, dict[str, tuple[float, float]]] = {}  # by sender: (rate, gain), as last told
        for line in lines:
            one, other = line.between
            self._by_pair[one, other] = self._by_pair[other, one] = line
            self._by_name[line.name] = line

    def between(self, one: str, other: str) -> Line:
        """The line that joins two datacenters."""
        return self._by_pair.get((one, other), INSIDE if one == other else OPEN)

    def all(self) -> list[Line]:
        return list(self._by_name.values())

    def rate(self, line: Line) -> float:
        """Bytes/s that the line carries now: its cap, or less where senders that have a backlog measure
        less in sum.

        0.0 where nothing limits it.
        """
        measured = sum(self._estimates.get(line.name, {}).values())
        if line.rate and measured:
            return min(line.rate, measured)
        return line.rate or measured

    def kv_rate(self, line: Line) -> float:
        """Bytes of KV that cross the line in a second now: more than `rate` where they are compressed. Every
        time that bytes are to take on a line comes from this.

        0.0 where nothing limits it.
        """
        told = self._gains.get(line.name, {}).values()
        carried = sum(rate for rate, _ in told)
        gain = sum(rate * gain for rate, gain in told) / carried if carried else 1.0
        return self.rate(line) * gain

    def measured(
        self,
        node: str,
        rates: dict[str, float],
        backlog: dict[str, int],
        gains: dict[str, float] | None = None,
    ) -> None:
        """A sender's estimates per line; those without a backlog say nothing of what the line can carry.

        `gains`: bytes of KV for each byte on the wire, by line; 1 where a line is not in it. What a sender
        has told with its last estimate counts on while it has nothing to send: its KV stays the same.
        """
        for name in self._by_name:
            estimates = self._estimates.setdefault(name, {})
            if backlog.get(name, 0) > 0 and rates.get(name, 0.0) > 0:
                estimates[node] = rates[name]
                gain = max(1.0, (gains or {}).get(name, 1.0))
                self._gains.setdefault(name, {})[node] = rates[name], gain
            else:
                estimates.pop(node, None)

    def forget(self, node: str) -> None:
        """A sender is gone."""
        for estimates in self._estimates.values():
            estimates.pop(node, None)
        for gains in self._gains.values():
            gains.pop(node, None)
