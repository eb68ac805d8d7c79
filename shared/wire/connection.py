"""One connection from its first byte: handshake, then control frames or chunks, as a table (sans-IO).

Bytes go in through `get_buffer`/`buffer_updated`, events come out of `next_event`, handshake answers out of
`take_output`. Any Remote error raised here ends the connection; `last_words` is what to send before
closing. Knows no sessions' numbers, no sockets and no clock.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from shared.errors import BadHeader, UnexpectedMessage
from shared.wire.codec import check_payload, decode
from shared.wire.framing import ChunkHead, Frame, FrameKind, FrameParser, frame_bytes
from shared.wire.handshake import Agreed, Dialler, Handshake
from shared.wire.messages import Goodbye, KvChunk, Ping, Pong


class State(enum.Enum):
    HANDSHAKE = "handshake"
    CONTROL = "control"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class Opened:
    """The handshake is over; what both sides agreed on."""

    agreed: Agreed


@dataclass(frozen=True, slots=True)
class Numbered:
    """A frame for the session: a message, a part, or an ack."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class LinkMessage:
    """Ping, Pong or Goodbye; the frame carries an ack."""

    message: Ping | Pong | Goodbye
    frame: Frame


class ChunkStart(msgspec.Struct):
    """A chunk begins: answer with `receive_into` (memory of `size` bytes) before asking for the next
    event."""

    chunk: KvChunk
    size: int


class ChunkDone(msgspec.Struct):
    """All bytes of the chunk are in the memory that was given."""

    chunk: KvChunk


Event = Opened | Numbered | LinkMessage | ChunkStart | ChunkDone


class Connection:
    """Either side. `max_chunk` is the largest payload of a chunk that is taken."""

    def __init__(self, handshake: Handshake, *, max_chunk: int) -> None:
        self.state = State.HANDSHAKE
        self._handshake = handshake
        self._parser = FrameParser(max_chunk=max_chunk)
        self.get_buffer = self._parser.get_buffer
        """Where the next bytes belong; never empty."""
        self.get_buffers = self._parser.get_buffers
        """The same, as several places that are filled one after the other."""
        self.buffer_updated = self._parser.buffer_updated
        """Tell how many bytes were put there. False: in the middle of a chunk, there is no event to ask
        for."""
        self.receive_into = self._parser.receive_into
        """Memory for the chunk that `ChunkStart` announced. False: not all of it is here, there is no event
        to ask for."""
        self._events: deque[Event] = deque()
        self._output: list[bytes] = []
        self._chunk: KvChunk | None = None
        self._table: dict[tuple[State, FrameKind], Callable[[Frame], None]] = {
            (State.HANDSHAKE, FrameKind.HANDSHAKE): self._on_handshake,
            (State.HANDSHAKE, FrameKind.MESSAGE): self._on_confirmed,
            (State.HANDSHAKE, FrameKind.PART): self._on_confirmed,
            (State.HANDSHAKE, FrameKind.LINK): self._on_confirmed,
            (State.HANDSHAKE, FrameKind.ACK): self._on_confirmed,
            (State.CONTROL, FrameKind.MESSAGE): self._on_numbered,
            (State.CONTROL, FrameKind.PART): self._on_numbered,
            (State.CONTROL, FrameKind.ACK): self._on_numbered,
            (State.CONTROL, FrameKind.LINK): self._on_link,
            (State.BULK, FrameKind.ACK): self._on_bulk_ack,
        }
        if isinstance(handshake, Dialler):
            self._answer(handshake.hello)

    def certified(self, names: Sequence[str]) -> None:
        """The peer has shown a certificate with these names: it may call itself by no other."""
        self._handshake.certified = names

    @property
    def agreed(self) -> Agreed | None:
        return self._handshake.agreed if self.state is not State.HANDSHAKE else None

    @property
    def chunk(self) -> KvChunk | None:
        """The chunk whose bytes are being received."""
        return self._chunk

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    def take_output(self) -> bytes:
        """Bytes to send now: the handshake's frames."""
        output, self._output = self._output, []
        return b"".join(output)

    def last_words(self) -> bytes:
        """The Reject to send before closing, where the handshake was refused on this side."""
        header = self._handshake.farewell
        return b"" if header is None else frame_bytes(Frame(FrameKind.HANDSHAKE, header))

    def next_event(self) -> Event | None:
        """What the bytes received so far say next. Raises Remote errors."""
        while not self._events:
            event = self._parser.next_event()
            if event is None:
                return None
            if isinstance(event, Frame):
                self._dispatch(event)
                continue
            if isinstance(event, ChunkHead):
                return self._start_chunk(event)
            chunk, self._chunk = self._chunk, None
            assert chunk is not None
            return ChunkDone(chunk)
        return self._events.popleft()

    def _dispatch(self, frame: Frame) -> None:
        step = self._table.get((self.state, frame.kind))
        if step is None:
            raise UnexpectedMessage(f"{frame.kind.name} frame on a connection in state {self.state.value}")
        step(frame)

    def _start_chunk(self, head: ChunkHead) -> ChunkStart:
        if self.state is not State.BULK:
            raise UnexpectedMessage(f"CHUNK frame on a connection in state {self.state.value}")
        message = decode(head.header)
        if not isinstance(message, KvChunk):
            raise BadHeader(f"{type(message).__name__} as the header of a CHUNK frame")
        if message.encoding or message.length != head.size:
            check_payload(message, head.size)
        self._chunk = message
        return ChunkStart(message, head.size)

    def _on_handshake(self, frame: Frame) -> None:
        for header in self._handshake.receive(frame.header):
            self._answer(header)
        if self._handshake.open:
            self._open()

    def _on_confirmed(self, frame: Frame) -> None:
        if not isinstance(self._handshake, Dialler):
            raise UnexpectedMessage(f"{frame.kind.name} frame before the handshake is over")
        self._handshake.confirmed()
        self._open()
        self._dispatch(frame)

    def _open(self) -> None:
        agreed = self._handshake.agreed
        assert agreed is not None
        self.state = State.BULK if agreed.bulk else State.CONTROL
        if agreed.bulk:
            self._parser.expect_chunks()
        self._events.append(Opened(agreed))

    def _on_numbered(self, frame: Frame) -> None:
        self._events.append(Numbered(frame))

    def _on_link(self, frame: Frame) -> None:
        message = decode(frame.header)
        if not isinstance(message, Ping | Pong | Goodbye):
            raise BadHeader(f"{type(message).__name__} as the header of a LINK frame")
        self._events.append(LinkMessage(message, frame))

    def _on_bulk_ack(self, frame: Frame) -> None:
        """The listener's confirmation of a bulk connection: it acknowledges nothing."""

    def _answer(self, header: bytes) -> None:
        self._output.append(frame_bytes(Frame(FrameKind.HANDSHAKE, header)))
