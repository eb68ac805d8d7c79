"""Large control messages cut into parts and joined again (pure). Knows no order, numbers or sockets.

A message whose header and payload together exceed one frame travels as parts of that byte string. Parts of
several messages may be interleaved; those of one message come in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shared.errors import BadHeader, FrameTooLarge, SequenceGap
from shared.wire.framing import PART_BYTES
from shared.wire.messages import Nat

MOST_OPEN = 4
"""Large messages of one session whose parts may be interleaved."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Header of a PART frame. Its payload is bytes [offset, ...) of the message's header followed by its
    payload."""

    stream: Nat  # number of the large message in its session and direction
    offset: Nat
    header: Nat  # bytes of the message's header
    total: Nat  # bytes of header and payload


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Part)


def cut(stream: int, header: bytes, payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(header, payload) of each PART frame of a message, in order."""
    total = len(header) + len(payload)
    whole = memoryview(header + payload)
    for offset in range(0, total, PART_BYTES):
        part = Part(stream, offset, len(header), total)
        yield _encoder.encode(part), bytes(whole[offset : offset + PART_BYTES])


class PartJoiner:
    """The receiving side: memory grows only with bytes that arrived, up to `MOST_OPEN` messages of `most`
    bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, tuple[Part, bytearray]] = {}

    @property
    def held(self) -> int:
        """Bytes of messages that are not whole yet."""
        return sum(len(data) for _, data in self._open.values())

    def add(self, header: bytes, payload: bytes) -> tuple[bytes, bytes] | None:
        """The next part; the message's header and payload once it is whole. Raises ProtocolError."""
        try:
            part = _decoder.decode(header)
        except msgspec.DecodeError as error:
            raise BadHeader(f"PART header: {error}") from error
        known = self._open.get(part.stream)
        data = known[1] if known else self._begin(part)
        if known and (known[0].header, known[0].total) != (part.header, part.total):
            raise BadHeader(f"part of message {part.stream} names other lengths than its first")
        if part.offset != len(data):
            raise SequenceGap(f"part of message {part.stream} at {part.offset}; the next is at {len(data)}")
        if not payload or part.offset + len(payload) > part.total:
            raise BadHeader(
                f"part of message {part.stream}: {len(payload)} bytes at {part.offset}/{part.total}"
            )
        data += payload
        if len(data) < part.total:
            return None
        del self._open[part.stream]
        return bytes(data[: part.header]), bytes(data[part.header :])

    def _begin(self, part: Part) -> bytearray:
        if part.total > self._most or part.header > part.total:
            raise FrameTooLarge(f"control message of {part.header}/{part.total} bytes; at most {self._most}")
        if len(self._open) >= MOST_OPEN:
            raise FrameTooLarge(f"more than {MOST_OPEN} large control messages at the same time")
        data = bytearray()
        self._open[part.stream] = (part, data)
        return data
