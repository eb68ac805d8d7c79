"""What all rooms of the router's core share: who is there, what is known, where instructions and events go.

Rooms change only what is made for it: the outbox, the events, the counters.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from services.router.fleet import Fleet
from services.router.index import Index
from services.router.placement import Placement
from services.router.requests import RequestEvent
from shared.policy.config import LinkPolicy, RouterPolicy, WorkerPolicy
from shared.wire.messages import Message, Rid
from shared.wire.port import Instruction, Send


@dataclass(slots=True)
class Mesh:
    """One router's view of the mesh."""

    policy: RouterPolicy
    worker: WorkerPolicy
    link: LinkPolicy
    fleet: Fleet
    index: Index
    placement: Placement
    outbox: list[Instruction] = field(default_factory=list)
    events: list[tuple[Rid, RequestEvent]] = field(default_factory=list)
    counters: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def send(self, node: str, message: Message, payload: bytes = b"") -> None:
        """A control message to a node."""
        self.outbox.append(Send(node, message, payload))

    def emit(self, rid: Rid, event: RequestEvent) -> None:
        """An event for the HTTP side."""
        self.events.append((rid, event))

    def count(self, name: str, by: float = 1.0) -> None:
        """Add to a counter that /metrics shows."""
        self.counters[name] += by
