"""What a peer of protocol version 1 says and hears: today's messages cut to the fields that version 1 had, as
its golden bytes show them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.messages import Message
from tests.support.samples import MESSAGES

VERSION = 1
GOLDEN = {
    name: bytes.fromhex(text)
    for name, text in json.loads(
        (Path(__file__).parents[1] / "golden" / "wire-1.json").read_text(encoding="utf-8")
    ).items()
}
"""Every message of version 1 by name, with every field set."""

_SHAPES: dict[str, list[Any]] = {name: msgspec.msgpack.decode(header) for name, header in GOLDEN.items()}
_ROW = len(_SHAPES["TokensOut"][1][0])
_NOW = {type(message).__name__: msgspec.msgpack.decode(encode(message)) for message in MESSAGES}


def known(message: Message) -> bool:
    """Whether version 1 has this kind of message."""
    return type(message).__name__ in GOLDEN


def as_version_1(message: Message) -> Message:
    """The message as it is between a peer of version 1 and one of today, in either direction: later fields
    are not sent, or let pass."""
    return decode(header_1(message))


def header_1(message: Message) -> bytes:
    """The header that a peer of version 1 would send. Raises AssertionError for a message that version 1 has
    not."""
    name = type(message).__name__
    assert known(message), f"{name} was sent to or by a peer of version 1, which has no such message"
    fields = msgspec.msgpack.decode(encode(message))[: len(_SHAPES[name])]
    if name == "TokensOut":
        fields[1] = [row[:_ROW] for row in fields[1]]
    if isinstance(message, m.Failed):
        assert message.reason is not m.FailReason.GRAMMAR, "version 1 has no such reason"
    return msgspec.msgpack.encode(fields)


def added() -> dict[str, int]:
    """How many fields each message of version 1 has got since."""
    more = {name: len(_NOW[name]) - len(fields) for name, fields in _SHAPES.items()}
    return {name: count for name, count in more.items() if count}
