"""A sender and a receiver of one big transfer that resume after any break, as a ledger would, over plain
memory."""

from __future__ import annotations

from collections import deque

from shared.wire import messages as m
from shared.wire.messages import KvChunk, Message
from shared.wire.port import OutChunk, PeerInfo, Send, WakeBulk
from tests.support.recording_core import TICKET, RecordingCore, chunk_of
from tests.support.samples import RID


class SendingCore(RecordingCore):
    """Sends `data` to whoever says what it lacks; keeps every chunk until its write is settled."""

    def __init__(self, data: bytes, chunk: int) -> None:
        super().__init__()
        self.views = [memoryview(data)[at : at + chunk] for at in range(0, len(data), chunk)]
        self.waiting: deque[int] = deque()
        self.out: dict[int, int] = {}  # key -> index, of chunks that a write buffer may refer to
        self.sent_bytes = 0
        self._keys = 0

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None:
        super().on_message(now, node, message, payload)
        if isinstance(message, m.Have):
            self.waiting = deque(at for first, end in message.needs for at in range(first, end))
            self.outbox.append(WakeBulk(node))

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        if not self.waiting:
            return None
        at = self.waiting.popleft()
        self._keys += 1
        self.out[self._keys] = at
        self.sent_bytes += len(self.views[at])
        return chunk_of(self.views[at], block=at, key=self._keys)

    def chunk_written(self, now: float, node: str, key: int, sent: bool) -> None:
        del self.out[key]  # KeyError where it was settled before
        super().chunk_written(now, node, key, sent)


class ReceivingCore(RecordingCore):
    """Says what it lacks at the start and after every break; a range once verified is never given again."""

    def __init__(self, size: int, chunk: int) -> None:
        super().__init__()
        self.memory = bytearray(size)
        self.missing = set(range((size + chunk - 1) // chunk))
        self.landing: set[int] = set()
        self.repeated = 0
        self._chunk = chunk

    def ask(self, node: str) -> None:
        needs = tuple((at, at + 1) for at in sorted(self.missing))
        self.outbox.append(Send(node, m.Have(TICKET, RID, needs=needs)))

    def on_session(self, now: float, peer: PeerInfo) -> None:
        super().on_session(now, peer)
        self.ask(peer.node)

    def on_resumed(self, now: float, node: str) -> None:
        super().on_resumed(now, node)
        self.ask(node)

    def chunk_buffer(self, node: str, chunk: KvChunk) -> memoryview | None:
        if chunk.block not in self.missing or chunk.block in self.landing:
            self.repeated += 1
            return None
        self.landing.add(chunk.block)
        at = chunk.block * self._chunk
        return memoryview(self.memory)[at : at + chunk.length]

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        if in_place:
            self.landing.remove(chunk.block)
            self.missing.remove(chunk.block)
        super().on_chunk(now, node, chunk, data, in_place)

    def on_chunk_broken(self, node: str, chunk: KvChunk) -> None:
        self.landing.remove(chunk.block)
        super().on_chunk_broken(node, chunk)
