"""A core that writes down what it is told and sends what a test puts in its outbox."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import xxhash

from shared.wire.messages import KvChunk, Message
from shared.wire.port import Instruction, OutChunk, PeerInfo, Send, WakeBulk

TICKET = b"t" * 16


class RecordingCore:
    """Implements BulkCore over plain memory; `until` waits for a condition over what was recorded."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []
        self.sessions: list[PeerInfo] = []
        self.resumed: list[str] = []
        self.suspects: list[tuple[str, bool]] = []
        self.lost: list[tuple[str, str]] = []
        self.messages: list[tuple[str, Message, bytes]] = []
        self.chunks: list[tuple[KvChunk, bool, bool]] = []  # chunk, in place, right
        self.broken: list[KvChunk] = []
        self.written: list[tuple[int, bool]] = []
        self.outgoing: dict[str, deque[OutChunk]] = {}
        self.asked = 0
        self.deadline: float | None = None
        self.timers = 0
        self.buffers: Callable[[KvChunk], memoryview | None] = lambda chunk: None
        self.outbox: list[Instruction] = []
        self.happened = asyncio.Event()

    # --- what tests do ---

    def send(self, node: str, message: Message, payload: bytes = b"") -> None:
        self.outbox.append(Send(node, message, payload))

    def offer(self, node: str, chunk: OutChunk) -> None:
        self.outgoing.setdefault(node, deque()).append(chunk)
        self.outbox.append(WakeBulk(node))

    async def until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Return once `condition` holds; it is looked at after each event."""
        async with asyncio.timeout(timeout):
            while not condition():
                self.happened.clear()
                await self.happened.wait()

    # --- ControlCore ---

    def on_session(self, now: float, peer: PeerInfo) -> None:
        self.sessions.append(peer)
        self._note("session", peer.node)

    def on_resumed(self, now: float, node: str) -> None:
        self.resumed.append(node)
        self._note("resumed", node)

    def on_suspect(self, now: float, node: str, suspect: bool) -> None:
        self.suspects.append((node, suspect))
        self._note("suspect", (node, suspect))

    def on_lost(self, now: float, node: str, reason: str) -> None:
        self.lost.append((node, reason))
        self._note("lost", (node, reason))

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None:
        self.messages.append((node, message, payload))
        self._note("message", message)

    def on_timer(self, now: float) -> None:
        self.timers += 1
        self.deadline = None
        self._note("timer", now)

    def next_deadline(self) -> float | None:
        return self.deadline

    def take_outbox(self) -> list[Instruction]:
        taken, self.outbox = self.outbox, []
        return taken

    # --- BulkCore ---

    def chunk_buffer(self, node: str, chunk: KvChunk) -> memoryview | None:
        return self.buffers(chunk)

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        right = xxhash.xxh3_64_intdigest(data) == chunk.checksum
        self.chunks.append((chunk, in_place, right))
        self._note("chunk", chunk)

    def on_chunk_broken(self, node: str, chunk: KvChunk) -> None:
        self.broken.append(chunk)
        self._note("broken", chunk)

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        self.asked += 1
        waiting = self.outgoing.get(node)
        return waiting.popleft() if waiting else None

    def chunk_written(self, now: float, node: str, key: int, sent: bool) -> None:
        self.written.append((key, sent))
        self._note("written", (key, sent))

    def _note(self, kind: str, what: object) -> None:
        self.events.append((kind, what))
        self.happened.set()


def chunk_of(
    data: memoryview, *, ticket: bytes = b"t" * 16, block: int = 0, offset: int = 0, key: int = 0
) -> OutChunk:
    """A chunk whose checksum is right."""
    checksum = xxhash.xxh3_64_intdigest(data)
    return OutChunk(KvChunk(TICKET, 0, 0, block, offset, len(data), 0, checksum), data, key)
