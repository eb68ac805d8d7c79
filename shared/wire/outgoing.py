"""Control messages that wait to be sent, and which goes next (pure). Knows no numbers, acks or sockets.

Urgent ones first (Release, Feed, TokensOut), then other small ones, then the parts of large ones, a few of
which take turns. What belongs together never changes order: a message waits for an earlier one about the
same request (or the same index, or the worker itself) that it would otherwise overtake, and takes its place
once that is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from shared.wire import messages as m
from shared.wire.framing import PART_BYTES, FrameKind
from shared.wire.messages import Message
from shared.wire.parts import MOST_OPEN, cut

URGENT, SMALL, LARGE = range(3)
_URGENT = (m.Release, m.Feed, m.TokensOut)


@dataclass(slots=True, eq=False)
class _Waiting:
    """One message that is not wholly on its way yet."""

    header: bytes
    payload: bytes
    pushed: float
    rank: int
    keys: tuple[Hashable, ...]
    blockers: int = 0
    followers: list[_Waiting] = field(default_factory=list)
    parts: Iterator[tuple[bytes, bytes]] | None = None
    sent: int = 0

    @property
    def size(self) -> int:
        return len(self.header) + len(self.payload)


@dataclass(frozen=True, slots=True)
class Piece:
    """Content of one numbered frame."""

    kind: FrameKind
    header: bytes
    payload: bytes
    pushed: float

    @property
    def size(self) -> int:
        return len(self.header) + len(self.payload)


class Outgoing:
    """The queue of one session and direction."""

    def __init__(self) -> None:
        self._urgent: deque[_Waiting] = deque()
        self._small: deque[_Waiting] = deque()
        self._large: deque[_Waiting] = deque()  # not begun
        self._turns: deque[_Waiting] = deque()  # begun: one part each in turn
        self._last: dict[Hashable, _Waiting] = {}
        self._streams = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._urgent or self._small or self._large or self._turns)

    def push(self, now: float, message: Message, header: bytes, payload: bytes) -> None:
        """Queue a message with its encoded header."""
        if len(header) + len(payload) > PART_BYTES:
            rank = LARGE
        else:
            rank = URGENT if isinstance(message, _URGENT) else SMALL
        waiting = _Waiting(header, payload, now, rank, _keys(message))
        self.bytes += waiting.size
        for before in {id(w): w for k in waiting.keys if (w := self._last.get(k))}.values():
            if before.blockers or before.rank > rank or before.rank == LARGE:
                before.followers.append(waiting)
                waiting.blockers += 1
        for key in waiting.keys:
            self._last[key] = waiting
        if not waiting.blockers:
            self._line_up(waiting)

    def pop(self) -> Piece | None:
        """Content of the next frame, which is now the caller's."""
        queue = self._urgent or self._small
        if queue:
            waiting = queue.popleft()
            self._gone(waiting, waiting.size)
            return Piece(FrameKind.MESSAGE, waiting.header, waiting.payload, waiting.pushed)
        return self._next_part()

    def _next_part(self) -> Piece | None:
        while self._large and len(self._turns) < MOST_OPEN:
            begun = self._large.popleft()
            self._streams += 1
            begun.parts = cut(self._streams, begun.header, begun.payload)
            self._turns.append(begun)
        if not self._turns:
            return None
        waiting = self._turns.popleft()
        assert waiting.parts is not None
        header, payload = next(waiting.parts)
        waiting.sent += len(payload)
        if waiting.sent < waiting.size:
            self.bytes -= len(payload)
            self._turns.append(waiting)
        else:
            self._gone(waiting, len(payload))
        return Piece(FrameKind.PART, header, payload, waiting.pushed)

    def _line_up(self, waiting: _Waiting) -> None:
        (self._urgent, self._small, self._large)[waiting.rank].append(waiting)

    def _gone(self, waiting: _Waiting, size: int) -> None:
        """The last bytes of a message are on their way: what waited for it lines up."""
        self.bytes -= size
        for key in waiting.keys:
            if self._last.get(key) is waiting:
                del self._last[key]
        for follower in waiting.followers:
            follower.blockers -= 1
            if not follower.blockers:
                self._line_up(follower)


def _keys(message: Message) -> tuple[Hashable, ...]:
    """What a message is about: those that share one of these keep their order."""
    match message:
        case m.TokensOut():
            return tuple(row.rid for row in message.rows)
        case m.KvEvents() | m.Snapshot() | m.SnapshotDigest() | m.SnapshotRequest():
            return ("index",)
        case m.Announce() | m.LoadReport() | m.Drain() | m.LineShare() | m.Flush() | m.Peers():
            return ("worker",)
        case (
            m.Hello() | m.Welcome() | m.Proof() | m.Reject() | m.Ping() | m.Pong() | m.Goodbye() | m.KvChunk()
        ):
            return ()
        case _:
            return (message.rid,)
