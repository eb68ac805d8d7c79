"""What all rooms of one worker share: who it is, its limits, its pool and engine, where its instructions
go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.engine.engine import Engine
from shared.kv.pool import BlockPool
from shared.policy.config import LinePolicy, LinkPolicy, WorkerPolicy
from shared.wire.messages import Role
from shared.worker.journal import Journal
from shared.worker.outbox import Outbox
from shared.worker.peers import Peers
from shared.worker.timers import Timers


@dataclass(slots=True)
class Site:
    """One worker. Rooms change only the shared parts that are made for it: outbox, timers, counters."""

    node: str
    role: Role
    incarnation: int
    policy: WorkerPolicy
    line: LinePolicy
    link: LinkPolicy
    engine: Engine
    pool: BlockPool
    view: Callable[[int], memoryview]
    landed: Callable[[int], None]  # the bytes of a block came from elsewhere and are whole
    root: Callable[[bytes], bytes]  # cache salt -> root of the block hashes
    rng: Callable[[int], bytes]  # n random bytes
    block_tokens: int
    block_bytes: int
    max_context: int
    line_of: Callable[[str], str]  # node -> name of the line to it
    line_rate: Callable[[str], float]  # line -> bytes/s, 0.0 where unknown
    line_gain: Callable[[str], float]  # line -> bytes of KV for each byte that it carries
    line_oldest: Callable[[str], float | None]  # line -> part for the oldest; None: as configured
    draining: bool = False
    outbox: Outbox = field(default_factory=Outbox)
    journal: Journal = field(default_factory=Journal)
    peers: Peers = field(default_factory=Peers)
    timers: Timers = field(default_factory=Timers)
    counters: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def count(self, name: str, by: float = 1.0) -> None:
        """Add to a counter that /metrics shows."""
        self.counters[name] += by

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens, the partial last one included."""
        return -(-tokens // self.block_tokens)
