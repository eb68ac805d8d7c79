"""Bytes of one connection to frames and back (sans-IO). Knows no messages, sessions or sockets.

    prefix   magic "PD" | version u8 | kind u8 | header length u32 | payload length u32          12 bytes
    control  + seq u64 | ack u64 | milliseconds the message waited at its sender u32             20 bytes
    header   msgpack
    payload  raw

All numbers are little-endian. Control frames are small and read whole. A chunk's payload is not read here:
the parser reports its head, is told where the bytes go (`receive_into`), and from then on `get_buffer` is
that memory. Lengths are checked against the kind's limits before any memory is taken.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shared.errors import BadHeader, BadMagic, BadVersion, FrameTooLarge, InvariantBroken, UnknownKind

MAGIC = b"PD"
VERSION = 1
PART_BYTES = 16 << 10
"""Bytes of header and payload of a control frame at most; larger messages travel in parts."""
HEADER_LIMIT = 1 << 10
"""Bytes of a chunk's header, or of a part's, at most."""
READ_AHEAD = 64 << 10
CHUNK_READ_AHEAD = 128
"""Bytes asked for at a chunk's head: prefix and header are 60 to 90, what is read beyond is copied."""

_PREFIX = struct.Struct("<2sBBII")
_CONTROL = struct.Struct("<QQI")
PREFIX_BYTES = _PREFIX.size
CONTROL_PREFIX_BYTES = PREFIX_BYTES + _CONTROL.size


class FrameKind(enum.IntEnum):
    HANDSHAKE = 1  # Hello, Welcome, Proof, Reject
    MESSAGE = 2  # a whole control message, numbered
    PART = 3  # a part of a large control message, numbered
    LINK = 4  # Ping, Pong, Goodbye: not numbered, never sent again
    ACK = 5  # nothing but an ack
    CHUNK = 6  # KvChunk


NUMBERED = frozenset({FrameKind.MESSAGE, FrameKind.PART})
_WITH_CONTROL = frozenset({FrameKind.MESSAGE, FrameKind.PART, FrameKind.LINK, FrameKind.ACK})
_CHUNK = int(FrameKind.CHUNK)
_KINDS = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame of any kind but CHUNK."""

    kind: FrameKind
    header: bytes
    payload: bytes = b""
    seq: int = 0
    ack: int = 0
    waited_ms: int = 0


class ChunkHead(msgspec.Struct):
    """A chunk's payload follows: answer with `receive_into` before asking for the next event."""

    header: bytes
    size: int


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The memory given for the last chunk is full."""


FrameEvent = Frame | ChunkHead | ChunkEnd

_END = ChunkEnd()


def frame_bytes(frame: Frame) -> bytes:
    """A frame of any kind but CHUNK, as it travels."""
    prefix = _PREFIX.pack(MAGIC, VERSION, frame.kind, len(frame.header), len(frame.payload))
    if frame.kind in _WITH_CONTROL:
        prefix += _CONTROL.pack(frame.seq, frame.ack, min(frame.waited_ms, 0xFFFFFFFF))
    return b"".join((prefix, frame.header, frame.payload))


def chunk_head(header: bytes, size: int) -> bytes:
    """What travels before the `size` bytes of a chunk."""
    return _PREFIX.pack(MAGIC, VERSION, FrameKind.CHUNK, len(header), size) + header


@dataclass(frozen=True, slots=True)
class _Prefix:
    kind: FrameKind
    header: int
    payload: int

    @property
    def before_header(self) -> int:
        return CONTROL_PREFIX_BYTES if self.kind in _WITH_CONTROL else PREFIX_BYTES

    @property
    def buffered(self) -> int:
        """Bytes that are read whole before the frame is reported."""
        whole = self.before_header + self.header
        return whole if self.kind is FrameKind.CHUNK else whole + self.payload


class FrameParser:
    """One direction of one connection. Fill what `get_buffer` gives, tell `buffer_updated`, take
    `next_event`s.

    Raises Remote errors of `shared.errors` for bytes that cannot be understood; after one the parser is
    dead and the connection must end.
    """

    def __init__(self, *, max_chunk: int) -> None:
        self._limits = {
            FrameKind.HANDSHAKE: (PART_BYTES, 0),
            FrameKind.MESSAGE: (PART_BYTES, PART_BYTES),
            FrameKind.PART: (HEADER_LIMIT, PART_BYTES),
            FrameKind.LINK: (HEADER_LIMIT, 0),
            FrameKind.ACK: (0, 0),
            FrameKind.CHUNK: (HEADER_LIMIT, max_chunk),
        }
        self._buffer = bytearray(READ_AHEAD)
        self._view = memoryview(self._buffer)
        self._head_view = self._view[:CHUNK_READ_AHEAD]
        self._start = 0
        self._end = 0
        self._prefix: _Prefix | None = None
        self._read_ahead = READ_AHEAD
        self._sink: memoryview | None = None
        self._filled = 0
        self._chunks = False
        self._open = 0  # bytes of the chunk whose head was reported
        self._head_open = False  # a ChunkHead was reported and its memory is not known yet

    def expect_chunks(self) -> None:
        """From here on nearly all bytes are chunks: ask for little more than their heads."""
        self._read_ahead = CHUNK_READ_AHEAD
        self._chunks = True

    @property
    def between_frames(self) -> bool:
        """Whether the connection may end here without a frame being cut."""
        head = self._prefix is not None or self._head_open
        return self._start == self._end and not head and self._sink is None

    @property
    def in_chunk(self) -> bool:
        return self._sink is not None

    def get_buffer(self) -> memoryview:
        """Where the next bytes of the connection belong; never empty."""
        if self._sink is not None:
            return self._sink[self._filled :]
        need = self._need() - (self._end - self._start)
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end + max(need, self._read_ahead) > READ_AHEAD:
            kept = self._end - self._start
            self._buffer[:kept] = self._buffer[self._start : self._end]
            self._start, self._end = 0, kept
        return self._view[self._end : min(READ_AHEAD, self._end + max(need, self._read_ahead))]

    def get_buffers(self) -> Sequence[memoryview]:
        """The same for one that reads into several places: behind a chunk's memory the next head's."""
        if self._sink is None:
            return (self.get_buffer(),)
        self._start = self._end = 0  # what was read early is in the sink, or it is full and not asked for
        return (self._sink[self._filled :], self._head_view)

    def buffer_updated(self, count: int) -> bool:
        """`count` bytes were put at the front of what `get_buffer` or `get_buffers` gave last. False: in the
        middle of a chunk, there is no event to ask for."""
        if self._sink is None:
            self._end += count
            return True
        self._filled += count
        beyond = self._filled - len(self._sink)
        if beyond > 0:
            self._filled -= beyond
            self._end = beyond
        return beyond >= 0

    def next_event(self) -> FrameEvent | None:
        """The next frame, or None until more bytes are here."""
        if self._head_open:
            raise InvariantBroken("a chunk's head was reported and nobody said where its bytes go")
        if self._sink is not None:
            if self._filled < len(self._sink):
                return None
            self._sink = None
            return _END
        if self._chunks and self._prefix is None and self._end - self._start >= PREFIX_BYTES:
            head = self._chunk_head()
            if head is not None:
                return head
        if self._prefix is None and not self._read_prefix():
            return None
        prefix = self._prefix
        assert prefix is not None
        if self._end - self._start < prefix.buffered:
            return None
        return self._take(prefix)

    def receive_into(self, target: memoryview) -> bool:
        """The open chunk's payload belongs into `target`, which is exactly as long. False: not all of it is
        here, there is no event to ask for."""
        size = self._open
        if not self._head_open or len(target) != size:
            raise InvariantBroken(
                f"{len(target)} bytes of memory given for a chunk that is not open or differs"
            )
        early = min(self._end - self._start, size)
        if early:
            target[:early] = self._view[self._start : self._start + early]
            self._start += early
        self._sink = target
        self._filled = early
        self._prefix = None
        self._head_open = False
        return early == size

    def _need(self) -> int:
        return PREFIX_BYTES if self._prefix is None else self._prefix.buffered

    def _chunk_head(self) -> ChunkHead | None:
        """The head of a chunk where it is here whole; None for all else: that is looked at with care."""
        start = self._start
        magic, version, number, header, payload = _PREFIX.unpack_from(self._buffer, start)
        after = start + PREFIX_BYTES + header
        limits = self._limits[FrameKind.CHUNK]
        known = magic == MAGIC and version == VERSION and number == _CHUNK
        if not known or after > self._end or header > limits[0] or not 0 < payload <= limits[1]:
            return None
        self._start = after
        self._open = payload
        self._head_open = True
        return ChunkHead(bytes(self._view[start + PREFIX_BYTES : after]), payload)

    def _read_prefix(self) -> bool:
        if self._end - self._start < PREFIX_BYTES:
            self._check_magic()
            return False
        magic, version, number, header, payload = _PREFIX.unpack_from(self._buffer, self._start)
        if magic != MAGIC:
            raise BadMagic(
                f"frame begins with {magic!r}, not {MAGIC!r}: the other side speaks another protocol"
            )
        if version != VERSION:
            raise BadVersion(f"frame format version {version}; this side reads {VERSION}")
        kind = _KINDS.get(number)
        if kind is None:
            raise UnknownKind(f"frame kind {number} is not known to this version")
        most_header, most_payload = self._limits[kind]
        if header > most_header or payload > most_payload:
            raise FrameTooLarge(
                f"{kind.name} frame with {header} + {payload} bytes; at most {most_header} + {most_payload}"
            )
        if kind in NUMBERED and header + payload > PART_BYTES + HEADER_LIMIT:
            raise FrameTooLarge(f"{kind.name} frame of {header + payload} bytes; at most {PART_BYTES}")
        if kind is FrameKind.CHUNK and not payload:
            raise BadHeader("a chunk without bytes")
        self._prefix = _Prefix(kind, header, payload)
        return True

    def _check_magic(self) -> None:
        """Refuse another protocol from its first bytes on: it may never send twelve."""
        early = bytes(self._view[self._start : min(self._end, self._start + len(MAGIC))])
        if early != MAGIC[: len(early)]:
            raise BadMagic(
                f"frame begins with {early!r}, not {MAGIC!r}: the other side speaks another protocol"
            )

    def _take(self, prefix: _Prefix) -> FrameEvent:
        seq = ack = waited = 0
        at = self._start + PREFIX_BYTES
        if prefix.kind in _WITH_CONTROL:
            seq, ack, waited = _CONTROL.unpack_from(self._buffer, at)
            at += _CONTROL.size
        header = bytes(self._view[at : at + prefix.header])
        at += prefix.header
        if prefix.kind is FrameKind.CHUNK:
            self._start = at
            self._head_open = True
            self._open = prefix.payload
            return ChunkHead(header, prefix.payload)
        payload = bytes(self._view[at : at + prefix.payload])
        self._start = at + prefix.payload
        self._prefix = None
        return Frame(prefix.kind, header, payload, seq, ack, waited)
