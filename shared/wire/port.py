"""The two faces between a service's pure core and the transport.

A core is a state machine: the transport calls it in the loop thread with the time and an event; it never
blocks, never raises for bad input, and leaves what it wants done in its outbox, which the caller performs
at once after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from shared.wire.messages import KvChunk, Message, Role


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Who is at the other end of a session."""

    node: str
    role: Role
    datacenter: str
    incarnation: int
    version: int = 1
    template: str = ""
    """Tokenizer-and-template part of a worker's fingerprint; "" where it is not known."""


@dataclass(frozen=True, slots=True)
class Send:
    """Instruction: a control message to a node. Dropped (and counted) where no session exists: the core is
    told of sessions that open and end, and never counts on a message to a node that it was told is lost."""

    node: str
    message: Message
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class WakeBulk:
    """Instruction: `next_chunk` for this node may have something again."""

    node: str


@dataclass(frozen=True, slots=True)
class Dial:
    """Instruction: keep a session to this node, which listens at host:port (a no-op where one is kept)."""

    node: str
    role: Role
    datacenter: str
    address: str


@dataclass(frozen=True, slots=True)
class Undial:
    """Instruction: keep that session no longer, where it was the core that asked for it. An open one stays
    until it breaks."""

    node: str


Instruction = Send | WakeBulk | Dial | Undial


class OutChunk(msgspec.Struct):
    """One chunk to write. `data` views pool memory: `chunk_written(key)` is called once nothing refers to
    it any more."""

    header: KvChunk
    data: memoryview
    key: int


class ControlCore(Protocol):
    """What every core offers."""

    def on_session(self, now: float, peer: PeerInfo) -> None:
        """A session has opened (first connection of this pair of incarnations)."""

    def on_resumed(self, now: float, node: str) -> None:
        """A live session has a new bulk or control connection after a break: in-flight bulk bytes may be
        lost."""

    def on_suspect(self, now: float, node: str, suspect: bool) -> None:
        """No sign of life for `suspect_after`, or one again."""

    def on_lost(self, now: float, node: str, reason: str) -> None:
        """The session has ended, once: lease over, new incarnation, Goodbye, or overflow."""

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None: ...

    def on_timer(self, now: float) -> None: ...

    def next_deadline(self) -> float | None:
        """When `on_timer` is wanted next, in the same clock as `now`."""

    def take_outbox(self) -> list[Instruction]:
        """All instructions since the last call, in order."""


class BulkCore(ControlCore, Protocol):
    """What a core that sends and receives KV offers beside."""

    def chunk_buffer(self, node: str, chunk: KvChunk) -> memoryview | None:
        """Block memory for exactly this chunk's decoded bytes, or None: receive into scratch. Held no
        longer than until the matching `on_chunk` or `on_chunk_broken`. Of an encoded chunk it is asked for
        when all its bytes are here."""

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        """A whole chunk is here and decoded: in the block (`in_place`) or in scratch. Not yet verified. An
        encoded one that has no place in a block is not decoded, and `data` is empty."""

    def on_chunk_broken(self, node: str, chunk: KvChunk) -> None:
        """The connection, or the session, ended inside a chunk whose buffer had been handed out."""

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        """The next bytes for this node, at most `limit`; None: nothing to send now."""

    def chunk_written(self, now: float, node: str, key: int, sent: bool) -> None:
        """No write buffer refers to the chunk any more (`sent`: handed to the kernel whole)."""
