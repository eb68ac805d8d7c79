"""One sender on one line in virtual time: how long each transfer takes under a discipline."""

from __future__ import annotations

from collections.abc import Sequence

from shared.policy.config import LinePolicy
from shared.policy.priority import UNCOVERED, SendQueue


def serve(arrivals: Sequence[tuple[float, int]], rate: float, chunk: float) -> list[float]:
    """Seconds from arrival to the last byte of each (arrival, bytes), sent by a `SendQueue`, all in one
    class."""
    queue = SendQueue(LinePolicy())
    left: dict[bytes, float] = {}
    took = [0.0] * len(arrivals)
    now, coming = 0.0, 0
    while coming < len(arrivals) or left:
        if not left:
            now = max(now, arrivals[coming][0])
        while coming < len(arrivals) and arrivals[coming][0] <= now:
            ticket = coming.to_bytes(4, "big")
            left[ticket] = arrivals[coming][1]
            queue.open(ticket, UNCOVERED, arrivals[coming][1], arrivals[coming][0])
            queue.set_ready(ticket, True)
            coming += 1
        picked = queue.next()
        assert picked is not None
        size = min(chunk, left[picked])
        now += size / rate
        left[picked] -= size
        queue.sent(picked, int(size))
        at = int.from_bytes(picked, "big")
        if left[picked] > 0:
            queue.acked(picked, int(arrivals[at][1] - left[picked]))
        else:
            del left[picked]
            queue.close(picked)
            took[at] = now - arrivals[at][0]
    return took


def first_come(arrivals: Sequence[tuple[float, int]], rate: float) -> list[float]:
    """The same where each transfer waits for all before it."""
    now, took = 0.0, []
    for arrival, size in arrivals:
        now = max(now, arrival) + size / rate
        took.append(now - arrival)
    return took
