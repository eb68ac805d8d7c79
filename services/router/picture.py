"""What an operator is shown of a router: requests and where their time goes, lines, workers, pipelines.

Data only, JSON-ready. Times are milliseconds (of a request: since its submit), rates bytes per second.
"""

from __future__ import annotations

import msgspec


class Crossing(msgspec.Struct, frozen=True):
    """KV on its way to one decoder of a request."""

    kind: str
    """`wan` to main decode, `lan` to a relay."""
    start_ms: float
    end_ms: float | None
    """None: still on its way."""
    bytes: int
    """Asked for; 0 where it is not counted (to a relay)."""


class RequestRow(msgspec.Struct, frozen=True):
    """One request, running or ended."""

    id: str
    tenant: str
    model: str
    """Served name; empty: any."""
    state: str
    """The phase; of one that has ended, how."""
    pipeline: str
    prompt_tokens: int
    hit_tokens: int
    """Prompt tokens whose KV main decode had."""
    made: int
    most: int
    """Output tokens so far, and at most."""
    age_ms: float
    """Since its submit; of one that has ended, until its end."""
    ago_ms: float
    """Since its end; 0 while it runs."""
    stages: list[tuple[str, float]]
    """(stage, when it began), in order; the last one goes on."""
    crossings: list[Crossing]
    nodes: dict[str, str]
    """Role -> node."""
    tokens: dict[str, int]
    """Role -> tokens drawn."""
    note: str
    """What it waits for, or the last reason that was noted."""


class Requests(msgspec.Struct, frozen=True):
    """The oldest of those that run, and the last that have ended."""

    live: int
    waiting: int
    oldest_wait_ms: float
    rows: list[RequestRow]
    """Oldest first; fewer than `live` where there are very many."""
    ended: list[RequestRow]
    """Newest first."""


class SenderRow(msgspec.Struct, frozen=True):
    """One worker's part in a line."""

    node: str
    unsent: int
    estimate: float
    sent: int


class LineRow(msgspec.Struct, frozen=True):
    """One line, each direction's senders together."""

    name: str
    between: tuple[str, str]
    cap: float
    """0: none."""
    estimate: float
    """What it carries now, as far as is known; 0: unknown."""
    rtt_ms: float
    outstanding: int
    """Bytes that wait for it, placements that no report knows of yet included."""
    classes: dict[str, int]
    """Bytes that its senders reported as waiting, by class."""
    oldest_ms: int
    sent: int
    """Bytes handed to it by the senders that are here: its growth is the rate."""
    senders: list[SenderRow]


class WorkerRow(msgspec.Struct, frozen=True):
    """One worker, as it reported last."""

    node: str
    role: str
    datacenter: str
    model: str
    state: str
    """`ok`, or why it gets no new work."""
    running: int
    queued: int
    queued_tokens: int
    most: int
    """Requests it may run."""
    blocks: int
    free: int
    promised: int
    pinned: int
    hit_tokens: int
    """Known tokens of its requests that were cached there, of `looked_up_tokens`, since it started."""
    looked_up_tokens: int
    rtt_ms: float
    """From the router and back."""
    step_ms: float
    prefill_rate: float


class Picture(msgspec.Struct, frozen=True):
    """All of it."""

    node: str
    datacenter: str
    at_ms: float
    """When it was made, by the router's own clock: what only grows becomes a rate by it."""
    draining: bool
    ready: bool
    reasons: list[str]
    requests: Requests
    lines: list[LineRow]
    workers: list[WorkerRow]
    pipelines: dict[str, int]
    """Requests placed on each since the start."""
    tokens: dict[str, int]
    """Tokens drawn by each role since the start."""
    cuts: dict[str, int]
    finished: int
    broken: int
    cancelled: int
    refused: int
