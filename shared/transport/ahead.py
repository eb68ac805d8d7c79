"""Chunks for one node that were taken from the core a little early, to be encoded while the socket is busy.

They leave in the order in which they came. Few are kept: each was chosen before the newest transfer was
known. Nothing here refers to pool memory while a thread works: the threads have copies. Knows no sockets and
no sessions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shared.policy.compression import CompressionGauge
from shared.transport.codec_threads import CodecThreads, Encoded
from shared.wire.port import OutChunk


@dataclass(slots=True)
class _Waiting:
    """A chunk, and its encoding where that is not done yet."""

    chunk: OutChunk
    work: asyncio.Future[Encoded] | None


class Ahead:
    """`encoding`: of all chunks that are encoded. `ready` is called when the first in the queue can leave."""

    def __init__(
        self, threads: CodecThreads, gauge: CompressionGauge, encoding: int, ready: Callable[[], None]
    ) -> None:
        self.gauge = gauge
        self._threads = threads
        self._encoding = encoding
        self._ready = ready
        self._queue: deque[_Waiting] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def room(self) -> bool:
        """Whether another chunk may be taken early: one for each thread, and one that waits for the
        socket."""
        return len(self._queue) <= self._threads.parallel

    def put(self, chunk: OutChunk, *, encode: bool) -> None:
        """The last in the queue, encoded or as it is."""
        waiting = _Waiting(chunk, None)
        self._queue.append(waiting)
        if encode:
            waiting.work = self._threads.encode(bytes(chunk.data), self._encoding)
            waiting.work.add_done_callback(lambda work: self._encoded(waiting, work))

    def pop(self) -> OutChunk | None:
        """The first chunk where it is ready."""
        if self._queue and self._queue[0].work is None:
            return self._queue.popleft().chunk
        return None

    def recall(self) -> list[int]:
        """Forget all chunks; their keys. None of them was written."""
        keys = [waiting.chunk.key for waiting in self._queue]
        self._queue.clear()
        return keys

    def _encoded(self, waiting: _Waiting, work: asyncio.Future[Encoded]) -> None:
        if work.cancelled():
            return
        done = work.result()
        chunk = waiting.chunk
        before = chunk.header.length
        self._threads.note_encoded(before, done)
        self.gauge.encoded(before, before if done.data is None else len(done.data), done.seconds)
        if done.data is not None:
            header = msgspec.structs.replace(chunk.header, encoding=self._encoding)
            waiting.chunk = OutChunk(header, memoryview(done.data), chunk.key)
        waiting.work = None
        if self._queue and self._queue[0] is waiting:
            self._ready()
