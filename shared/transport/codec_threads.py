"""Threads that encode and decode chunks, so that the event loop never does.

Bytes and views in, futures out; who waits for them, and how many there are, is for others to bound. Knows no
peers and no pool: memory that is decoded into has to stay the caller's until the future is done.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple, TypeVar

import structlog

from shared.errors import BadChunk
from shared.transport.compression import READS, ChunkCodec

_T = TypeVar("_T")


class Encoded(NamedTuple):
    """A chunk's bytes as they travel; None: they get no smaller."""

    data: bytes | None
    seconds: float


class Decoded(NamedTuple):
    """Whether the memory was filled; it is untouched where the bytes were no such chunk."""

    right: bool
    seconds: float


class CodecThreads:
    """`parallel` threads at most, started when first needed, each with a codec of its own; `make` None: there
    is none, and nothing may be encoded or decoded. `close` once nothing is awaited any more."""

    def __init__(self, make: Callable[[], ChunkCodec] | None, parallel: int, counters: Counter[str]) -> None:
        self.parallel = parallel
        self.reads = READS if make is not None else 0
        """What can be decoded here, a bit for each encoding; all chunks may come AS_IS."""
        self._make = make
        self._counters = counters
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._log = structlog.get_logger()
        self._decoding: deque[float] = deque(maxlen=8)  # bytes/s of one thread

    @property
    def decodes(self) -> int:
        """Bytes/s, after decoding, that this side can decode; 0: not measured yet."""
        return int(median(self._decoding) * self.parallel) if self._decoding else 0

    def encode(self, data: bytes, encoding: int) -> asyncio.Future[Encoded]:
        return self._submit(lambda: self._encode(data, encoding))

    def decode(self, data: memoryview, encoding: int, into: memoryview) -> asyncio.Future[Decoded]:
        """Fill `into`, which is as long as the decoded chunk."""
        return self._submit(lambda: self._decode(data, encoding, into))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    def note_encoded(self, before: int, done: Encoded) -> None:
        """Count a chunk that was encoded."""
        self._counters["encode_microseconds"] += round(done.seconds * 1e6)
        if done.data is not None:
            self._counters["encoded_bytes_before"] += before
            self._counters["encoded_bytes_after"] += len(done.data)

    def note_decoded(self, size: int, done: Decoded) -> None:
        """Count a chunk of `size` bytes that was decoded, or could not be."""
        if done.right:
            self._decoding.append(size / max(done.seconds, 1e-9))
            self._counters["decode_microseconds"] += round(done.seconds * 1e6)
        else:
            self._counters["chunks_undecodable"] += 1

    # --- in the threads ---

    def _encode(self, data: bytes, encoding: int) -> Encoded:
        began = time.perf_counter()
        try:
            made = self._codec().encode(data, encoding)
        except Exception:  # noqa: BLE001 - no memory, a library: others wait behind this chunk
            self._log.exception("a chunk could not be encoded; it is sent as it is", bytes=len(data))
            made = None
        return Encoded(made, time.perf_counter() - began)

    def _decode(self, data: memoryview, encoding: int, into: memoryview) -> Decoded:
        began = time.perf_counter()
        try:
            self._codec().decode(data, encoding, into)
        except BadChunk:
            return Decoded(False, 0.0)
        except Exception:  # noqa: BLE001 - as above: it is asked for again
            self._log.exception("a chunk could not be decoded", bytes=len(data))
            return Decoded(False, 0.0)
        return Decoded(True, time.perf_counter() - began)

    def _codec(self) -> ChunkCodec:
        codec: ChunkCodec | None = getattr(self._own, "codec", None)
        if codec is None:
            assert self._make is not None
            codec = self._own.codec = self._make()
        return codec

    # --- inside ---

    def _submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.parallel, thread_name_prefix="codec")
        return asyncio.get_running_loop().run_in_executor(self._pool, work)
