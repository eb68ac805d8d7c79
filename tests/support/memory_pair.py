"""Two sessions in memory over connections that delay and break, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.errors import Overflow, SessionOver
from shared.policy.config import LinkPolicy
from shared.wire.framing import Frame, FrameParser, frame_bytes
from shared.wire.messages import Message, Role
from shared.wire.port import PeerInfo
from shared.wire.session import Session
from tests.support.framing import feed


@dataclass
class Side:
    """One node: its incarnation, its session with the other, what it was told."""

    name: str
    incarnation: int = 1
    session: Session | None = None
    got: list[tuple[Message, bytes]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


class MemoryPair:
    """Side `a` dials, side `b` listens. Frames of a connection arrive in order, each after a random
    delay."""

    def __init__(self, policy: LinkPolicy, seed: int, *, most_delay: float = 0.2) -> None:
        self.policy = policy
        self.now = 0.0
        self.a = Side("a")
        self.b = Side("b")
        self.connection = 0  # number of the live connection; 0: none
        self.connections = 0
        self._random = random.Random(seed)
        self._most_delay = most_delay
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._arrives: dict[tuple[int, str], float] = {}

    # --- what happens ---

    def connect(self) -> None:
        """A handshake succeeds: the session goes on where both hold it, else another begins."""
        a, b = self.a, self.b
        old = self.connection
        self.connections += 1
        self.connection = self.connections
        assert old != self.connection
        agreed = a.session is not None and b.session is not None and a.session.number == b.session.number
        if agreed and a.session is not None and b.session is not None:
            last_a, last_b = a.session.last_seq, b.session.last_seq
            try:
                a.session.reconnected(last_b)
                b.session.reconnected(last_a)
            except SessionOver as over:
                self.end(a, str(over))
                self.end(b, str(over))
                agreed = False
        if not agreed:
            number = self._random.randrange(1, 1 << 40)
            for side, other in ((a, b), (b, a)):
                self.end(side, "another session")
                side.session = Session(
                    number, PeerInfo(other.name, Role.RELAY, "x", other.incarnation), self.policy
                )
                side.session.reconnected(0)
        self.pump(a)
        self.pump(b)

    def cut(self) -> None:
        """The connection breaks: what is on its way is lost."""
        self.connection = 0

    def restart(self, side: Side) -> None:
        """A side forgets everything."""
        self.cut()
        side.incarnation += 1
        side.session = None
        side.got.clear()
        side.ends.clear()

    def push(self, side: Side, message: Message, payload: bytes = b"") -> bool:
        """False where the session ended instead."""
        if side.session is None:
            return False
        try:
            side.session.push(self.now, message, payload)
        except Overflow as over:
            self.end(side, str(over))
            self.cut()
            return False
        self.pump(side)
        return True

    def pump(self, side: Side) -> None:
        """Put a side's frames on the live connection, as bytes."""
        if not self.connection or side.session is None:
            return
        while (frame := side.session.next_frame(self.now)) is not None:
            self._carry(side, frame)

    def end(self, side: Side, reason: str) -> None:
        if side.session is not None:
            side.session = None
            side.ends.append(reason)

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until

    def settle(self) -> None:
        """Let everything that is on its way arrive."""
        while self._queue:
            self.run(self._queue[0][0])

    # --- inside ---

    def _carry(self, side: Side, frame: Frame) -> None:
        data, connection = frame_bytes(frame), self.connection
        key = (connection, side.name)
        at = max(self._arrives.get(key, 0.0), self.now + self._random.uniform(0, self._most_delay))
        self._arrives[key] = at
        other = self.b if side is self.a else self.a
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, lambda: self._arrive(connection, other, data)))

    def _arrive(self, connection: int, side: Side, data: bytes) -> None:
        if connection != self.connection or side.session is None:
            return
        [frame] = feed(FrameParser(max_chunk=1), data)
        assert isinstance(frame, Frame)
        found = side.session.receive(frame)
        if found is not None:
            side.got.append(found)
        self.pump(side)
