"""One worker as the router sees it: what it announced, what it last reported, and what was given to it
since.

A report is older than what the router did after it was made; so each number is the report's plus the
router's own placements since then. Without that, stale reports send a whole burst to one worker. Knows no
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from services.router.breaker import Breaker
from shared.policy.handoff import OwnerLoad
from shared.wire.messages import Announce, LoadReport, Role
from shared.wire.port import PeerInfo

REPORT_LAG = 0.15
"""Seconds that a report may be older than its arrival: own placements younger than that are counted beside
it.
"""

DEFAULT_PREFILL_RATE = 2000.0
"""Tokens/s where neither a worker nor its peers have measured one yet."""

DEFAULT_STEP = 0.03
"""Seconds of a decode step where none was measured yet."""


class PoolKey(NamedTuple):
    """Workers that can serve one request together: same model, same KV layout, same block size."""

    fingerprint: str
    layout: bytes
    block_tokens: int


@dataclass(slots=True)
class Placed:
    """What one placement asks of a worker."""

    at: float
    tokens: int = 0  # to compute
    blocks: int = 0  # to take
    line: str = ""  # over which it sends
    bytes: int = 0
    singular: int = 0  # blocks of a singular request at a relay
    request: bool = True  # False: only a transfer of one


@dataclass(slots=True)
class Since:
    """Sums of placements."""

    requests: int = 0
    tokens: int = 0
    blocks: int = 0
    bytes: dict[str, int] = field(default_factory=dict)  # by line

    def add(self, placed: Placed, sign: int = 1) -> None:
        self.requests += sign * placed.request
        self.tokens += sign * placed.tokens
        self.blocks += sign * placed.blocks
        if placed.bytes:
            self.bytes[placed.line] = self.bytes.get(placed.line, 0) + sign * placed.bytes


@dataclass(slots=True, eq=False)
class Worker:
    """Numbers are of this router's own view; times are in its clock."""

    peer: PeerInfo
    joined_at: float
    breaker: Breaker
    announce: Announce | None = None
    report: LoadReport | None = None
    misfit: str = ""  # why this router cannot use it at all
    suspect: bool = False
    seen: bool = False  # its cache was once reported whole
    progress_at: float = 0.0  # last sign that its engine makes steps
    full_until: float = 0.0  # it refused for want of room, with this Retry-After
    placed: dict[Hashable, Placed] = field(default_factory=dict)  # all that has not ended
    fresh: dict[Hashable, Placed] = field(default_factory=dict)  # those that the last report cannot know of
    since: Since = field(default_factory=Since)  # their sums
    aside: Since = field(default_factory=Since)  # of a request that looks again: see `put_aside`
    drawing: set[Hashable] = field(default_factory=set)  # legs of this router that it is to draw for now

    @property
    def node(self) -> str:
        return self.peer.node

    @property
    def role(self) -> Role:
        return self.peer.role

    @property
    def pool(self) -> PoolKey | None:
        """None until it has announced itself, and where this router cannot use it."""
        if self.announce is None or self.misfit:
            return None
        return PoolKey(self.announce.fingerprint, self.announce.layout, self.announce.block_tokens)

    def serves(self, model: str) -> bool:
        """Whether it runs the model of a served name ("": any)."""
        return self.announce is not None and not self.misfit and model in ("", self.announce.model)

    def most_tokens(self) -> int:
        """Tokens that one request may have here at most: by the model, and by the pool, of which a block is
        kept for what a new owner recomputes. The id drawn last has no KV.
        """
        announce = self.announce
        if announce is None:
            return 0
        return min(announce.max_context, (announce.pool_blocks - 1) * announce.block_tokens + 1)

    def why_not(self, now: float) -> str | None:
        """Why it gets no new work; None where it may."""
        if self.announce is None:
            return "has not announced itself"
        if self.misfit:
            return self.misfit
        if self.suspect:
            return "silent"
        if self.announce.draining:
            return "draining"
        if not self.breaker.allows(now):
            return "failing"
        return None

    def take(self, key: Hashable, placed: Placed) -> None:
        """Count a placement until `give`."""
        self.book(key, placed)
        self.breaker.placed(placed.at)

    def book(self, key: Hashable, placed: Placed) -> None:
        """The same for a transfer, which no breaker cares for."""
        self.give(key)
        self.placed[key] = self.fresh[key] = placed
        self.since.add(placed)

    def give(self, key: Hashable) -> None:
        """The placement has ended, or asks for nothing any more."""
        self.placed.pop(key, None)
        placed = self.fresh.pop(key, None)
        if placed is not None:
            self.since.add(placed, -1)

    def put_aside(self, key: Hashable) -> Callable[[], None]:
        """Let a placement not count: its own request must not wait behind itself. Returns what undoes it."""
        placed = self.placed.pop(key, None)
        if placed is None:
            return _nothing
        fresh = self.fresh.pop(key, None) is not None
        counts, sign = (self.since, -1) if fresh else (self.aside, 1)
        counts.add(placed, sign)

        def undo() -> None:
            self.placed[key] = placed
            if fresh:
                self.fresh[key] = placed
            counts.add(placed, -sign)

        return undo

    def reported(self, now: float, report: LoadReport) -> None:
        """A new report; one that was overtaken by its successor is dropped."""
        old = self.report
        if old is not None and report.seq <= old.seq:
            return
        if old is None or _moved(old, report):
            self.progress_at = now
        if old is not None and _roomier(old, report):
            self.full_until = 0.0
        self.report = report
        self.fresh = {key: placed for key, placed in self.fresh.items() if placed.at > now - REPORT_LAG}
        self.since = Since()
        for placed in self.fresh.values():
            self.since.add(placed)

    def queued_tokens(self) -> int:
        """New tokens it has still to compute."""
        reported = 0 if self.report is None else self.report.queued_tokens
        return max(0, reported - self.aside.tokens) + self.since.tokens

    def free_blocks(self) -> int:
        """Blocks it could still promise."""
        if self.report is not None:
            free = self.report.free_blocks
        else:
            free = 0 if self.announce is None else self.announce.pool_blocks
        return max(0, free + self.aside.blocks - self.since.blocks)

    def load(self) -> int:
        """Requests that run or wait there."""
        if self.report is None:
            return self.since.requests
        return max(0, self.report.running + self.report.queued - self.aside.requests) + self.since.requests

    def taken(self) -> int:
        """Requests that run or wait there, or are on their way from this router."""
        return max(self.load(), sum(placed.request for placed in self.placed.values()))

    def unsent(self, line: str) -> int:
        """Bytes it has still to send over a line."""
        reported = 0 if self.report is None else self.report.unsent_bytes.get(line, 0)
        return max(0, reported - self.aside.bytes.get(line, 0)) + self.since.bytes.get(line, 0)

    def singular_blocks(self) -> int:
        return sum(placed.singular for placed in self.placed.values())

    def step_seconds(self) -> float:
        """A decode step now."""
        if self.report is not None and self.report.decode_step_ms > 0:
            return self.report.decode_step_ms / 1000
        return DEFAULT_STEP

    def prefill_rate(self, default: float = DEFAULT_PREFILL_RATE) -> float:
        """Tokens/s of prefill or extend."""
        if self.report is not None and self.report.prefill_rate > 0:
            return self.report.prefill_rate
        return default

    def owner_load(self) -> OwnerLoad:
        announce = self.announce
        return OwnerLoad(
            running=self.load(),
            queued=0 if self.report is None else self.report.queued,
            max_running=1 if announce is None else announce.max_running,
            free_blocks=self.free_blocks(),
            pool_blocks=0 if announce is None else announce.pool_blocks,
        )


def _nothing() -> None:
    """There was nothing to put aside."""


def _moved(old: LoadReport, new: LoadReport) -> bool:
    """Whether the engine has made a step between two reports."""
    if new.running == 0:
        return True  # nothing is in the engine: no step is due
    steps = new.counters.get("steps")
    if steps is not None:
        return steps != old.counters.get("steps")
    return new.queued_tokens < old.queued_tokens


def _roomier(old: LoadReport, new: LoadReport) -> bool:
    """Whether what was refused for want of room might be taken now."""
    return (
        new.free_blocks > old.free_blocks
        or new.promised_blocks < old.promised_blocks
        or new.queued < old.queued
    )
