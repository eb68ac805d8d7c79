"""The ways in which APIs write events, silence and errors: OpenAI's plain events, and those with names. Knows
no endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from services.router.front.failures import body_of, messages_body_of
from shared.errors import MeshError

Chunk = msgspec.Struct | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one API is written on a stream, and its errors off it."""

    named: bool
    """Whether each event carries its `type` as the event's name."""
    silence: bytes
    """Sent while nothing comes."""
    done: bytes
    """Sent after the last event."""
    body: Callable[[MeshError], Mapping[str, Any]]
    """The body of an error that comes instead of an answer."""

    def event(self, chunk: Chunk) -> bytes:
        """One server-sent event."""
        data = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
        if not self.named:
            return data
        name = chunk["type"] if isinstance(chunk, Mapping) else getattr(chunk, "type", "message")
        return f"event: {name}\n".encode() + data


OPENAI = Dialect(named=False, silence=b": waiting\n\n", done=b"data: [DONE]\n\n", body=body_of)
MESSAGES = Dialect(
    named=True, silence=b'event: ping\ndata: {"type": "ping"}\n\n', done=b"", body=messages_body_of
)
RESPONSES = Dialect(named=True, silence=b": waiting\n\n", done=b"", body=body_of)
