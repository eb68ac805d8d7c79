"""What a simulated mesh is made of: processes, lines, and the sessions between processes. No events here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, cast

from shared.engine.api import Runner, StepPlan
from shared.engine.engine import Engine
from shared.engine.events import EngineEvent
from shared.engine.synthetic import SyntheticTiming
from shared.policy.line_share import ShareHeld
from shared.wire.handshake import MAX_VERSION
from shared.wire.messages import KvChunk, Message, Role
from shared.wire.port import BulkCore, ControlCore, OutChunk, PeerInfo


class EngineCore(Protocol):
    """A core with an engine beside it."""

    def on_engine(self, now: float, events: Sequence[EngineEvent]) -> None: ...


class Timing(Protocol):
    """Virtual seconds that a step takes."""

    def seconds(self, plan: StepPlan) -> float: ...


@dataclass(eq=False)
class Node:
    """One process of the mesh. `engine` and `runner` come together; a router has neither."""

    name: str
    role: Role
    core: ControlCore
    incarnation: int
    datacenter: str = "a"
    engine: Engine | None = None
    runner: Runner | None = None
    timing: Timing = field(default_factory=SyntheticTiming)
    alive: bool = True
    stepping: StepPlan | None = None
    armed: float | None = None
    watched: bool = True  # what concerns it is told to the simulation's `after`
    version: int = MAX_VERSION
    """The highest protocol version that it speaks."""

    def met_by(self, other: Node) -> PeerInfo:
        """What another node is told of it."""
        version = min(self.version, other.version)
        return PeerInfo(self.name, self.role, self.datacenter, self.incarnation, version)

    @cached_property
    def bulk(self) -> BulkCore | None:
        return cast(BulkCore, self.core) if hasattr(self.core, "next_chunk") else None


@dataclass(slots=True)
class Debt:
    """Bytes that a sender has sent before its share let it: it may go on once they are paid."""

    left: float = 0.0
    since: float = 0.0  # when `left` was true
    rate: float = 0.0  # at which it is being paid

    def pay(self, now: float, rate: float) -> None:
        """Time has passed; from now on it is paid at another rate."""
        self.left = max(0.0, self.left - self.rate * (now - self.since))
        self.since, self.rate = now, rate

    @property
    def over(self) -> float:
        """When it will be paid."""
        return self.since + (self.left / self.rate if self.left else 0.0)


@dataclass(eq=False)
class Line:
    """A rate that all links over it share, per direction (`free` by sending datacenter). Rates in bytes/s;
    0: no limit. With a name, its senders keep to the shares of it that routers deal.
    """

    rate: float = 0.0
    delay: float = 0.001
    jitter: float = 0.0
    linger: float = 0.0  # seconds, at most, that a write buffer keeps a chunk beyond its time on the line
    landing: float = 1e-3  # seconds, at most, from the first byte's arrival to the last byte's
    name: str = ""
    free: dict[str, float] = field(default_factory=dict)
    carried: Counter[str] = field(default_factory=Counter)  # bytes by sending datacenter
    shares: dict[str, ShareHeld] = field(default_factory=dict)  # by sender
    debts: dict[str, Debt] = field(default_factory=dict)  # by sender


@dataclass(eq=False)
class Lane:
    """One bulk connection, one direction."""

    source: Node
    target: Node
    sending: OutChunk | None = None
    flying: deque[tuple[KvChunk, bytearray]] = field(default_factory=deque)
    landing: tuple[KvChunk, memoryview | None] | None = None
    arrives: float = 0.0
    arrived: int = 0  # chunks whose first byte is here while another is being received
    asleep: bool = True
    turn: int = 0  # of the next look at the line: earlier ones that are still to come are void


@dataclass(eq=False)
class Link:
    """A session between two nodes."""

    ends: tuple[Node, Node]
    line: Line
    lanes: list[Lane]
    up: bool = True
    over: bool = False
    era: int = 0  # grows with each cut: events of an older era are void
    down_since: float = 0.0
    untold: tuple[Node, str] | None = None  # an end that has not heard yet that the session is over
    waiting: dict[str, deque[tuple[Message, bytes]]] = field(
        default_factory=dict
    )  # by receiver, sent and not arrived
    arrives: dict[str, float] = field(default_factory=dict)

    def other(self, node: Node) -> Node:
        return self.ends[1] if node is self.ends[0] else self.ends[0]
