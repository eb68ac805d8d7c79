"""Headers of frames to messages and back, and what payload each message may carry. Knows no sockets.

A header is the msgpack form of one Struct of `shared.wire.messages`; a payload is raw bytes whose kind the
table below names. Everything a peer sends passes here once: what comes out has the right types and signs,
and a payload of the right size.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from shared.errors import BadHeader, UnknownKind
from shared.wire import messages as m
from shared.wire.messages import Message

HASH_BYTES = 16

encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder().encode
"""The header of a message."""

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class PayloadKind(enum.Enum):
    """What the raw bytes beside a header are."""

    NONE = "none"
    IDS = "ids"  # u32 little-endian (shared.kv.hashing.pack_ids)
    HASHES = "hashes"  # 16 bytes each
    BYTES = "bytes"  # a range of a KV block, as the header's encoding says


PAYLOAD: dict[type[Message], PayloadKind] = {
    m.KvEvents: PayloadKind.HASHES,
    m.Snapshot: PayloadKind.HASHES,
    m.Admit: PayloadKind.IDS,
    m.Prefill: PayloadKind.IDS,
    m.Attach: PayloadKind.HASHES,
    m.Feed: PayloadKind.IDS,
    m.KvChunk: PayloadKind.BYTES,
}
"""Messages not named here carry none."""

_UNIT = {PayloadKind.IDS: 4, PayloadKind.HASHES: HASH_BYTES}


def decode(header: bytes | bytearray | memoryview) -> Message:
    """The message of a header. Raises BadHeader, or UnknownKind where its tag is none of ours."""
    try:
        return _decoder.decode(header)
    except msgspec.ValidationError as error:
        tag = _tag(header)
        if isinstance(tag, int) and tag not in _TAGS:
            raise UnknownKind(f"message kind {tag} is not known to this version") from error
        raise BadHeader(f"message kind {tag}: {error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadHeader(f"header of {len(header)} bytes is no message: {error}") from error


def check_payload(message: Message, size: int) -> None:
    """Whether a message may carry `size` bytes of payload. Raises BadHeader."""
    kind = PAYLOAD.get(type(message), PayloadKind.NONE)
    name = type(message).__name__
    if kind is PayloadKind.NONE:
        if size:
            raise BadHeader(f"{name} carries no payload, but {size} bytes came")
        return
    unit = _UNIT.get(kind, 1)
    if size % unit:
        raise BadHeader(f"{name}: payload of {size} bytes is no multiple of {unit} ({kind.value})")
    expected = _expected(message)
    if expected is not None and size != expected:
        raise BadHeader(f"{name}: payload of {size} bytes where its header names {expected}")


def _expected(message: Message) -> int | None:
    """Payload bytes that the header itself fixes."""
    match message:
        case m.KvEvents():
            return HASH_BYTES * (message.stored + message.removed)
        case m.Snapshot():
            return HASH_BYTES * message.count
        case m.KvChunk() if message.encoding == 0:
            return message.length
        case _:
            return None


def _tag(header: bytes | bytearray | memoryview) -> object:
    """First element of a header, for messages of errors."""
    try:
        raw = msgspec.msgpack.decode(header)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return raw[0] if isinstance(raw, list) and raw else None


def _tags() -> frozenset[int]:
    found = set()
    for kind in m.KINDS:
        tag = kind.__struct_config__.tag
        assert isinstance(tag, int)
        found.add(tag)
    return frozenset(found)


_TAGS = _tags()
