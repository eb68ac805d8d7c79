"""The two smallest cores that move real KV: a sender with a send queue, a receiver with a block pool and
its ledger.

No requests and no router: a ticket names its number and its blocks, and the receiver opens it with its
first chunk. Connections are expected to last; nothing is sent again, and the receiver gives up where one
breaks. What is promised of the pool is bounded by the sender: where one of several connections lags,
transfers whose last bytes it has keep the next from beginning.
"""

# ruff: noqa: ARG002 (the face of a core fixes the arguments)
from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator

import xxhash

from shared.kv.layout import KvLayout, full_attention
from shared.kv.ledger import Ledger, Target
from shared.kv.memory import anonymous
from shared.kv.pool import BlockPool
from shared.policy.config import LinePolicy
from shared.policy.priority import SendQueue
from shared.wire.messages import Have, KvChunk, Message, Rid
from shared.wire.port import Instruction, OutChunk, PeerInfo, Send, WakeBulk

_TICKET = struct.Struct("<QQ")
_NOBODY = Rid(0, 0)
POOL_BLOCKS = 192
LANDING = POOL_BLOCKS // 2
"""Blocks of transfers that follow one another which may be on their way or incomplete at the receiver."""


def layout() -> KvLayout:
    """Blocks of 1 MiB."""
    return full_attention(layers=8, kv_heads=8, head_dim=128, block_tokens=32, dtype="bfloat16")


class Quiet:
    """What neither side needs, and memory of so many blocks."""

    def __init__(self, blocks: int = POOL_BLOCKS) -> None:
        self.outbox: list[Instruction] = []
        self.layout = layout()
        self.block_bytes = self.layout.block_bytes
        self.memory = touched(blocks * self.block_bytes)

    def place(self, block: int, offset: int) -> int:
        """Where a transfer's byte is in the sender's memory."""
        return (block % POOL_BLOCKS) * self.block_bytes + offset

    def on_session(self, now: float, peer: PeerInfo) -> None:
        self.outbox.append(WakeBulk(peer.node))

    def on_resumed(self, now: float, node: str) -> None: ...

    def on_suspect(self, now: float, node: str, suspect: bool) -> None: ...

    def on_lost(self, now: float, node: str, reason: str) -> None: ...

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None: ...

    def on_timer(self, now: float) -> None: ...

    def next_deadline(self) -> float | None:
        return None

    def take_outbox(self) -> list[Instruction]:
        taken, self.outbox = self.outbox, []
        return taken

    def chunk_buffer(self, node: str, chunk: KvChunk) -> memoryview | None:
        return None

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None: ...

    def on_chunk_broken(self, node: str, chunk: KvChunk) -> None: ...

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        return None

    def chunk_written(self, now: float, node: str, key: int, sent: bool) -> None: ...


def touched(size: int) -> memoryview:
    """Memory as a worker's pool has it, committed by the system: what was never written is one page, and no
    memory to speak of."""
    memory = memoryview(anonymous(size, whole=True))
    memory[:] = b"\x07" * size
    return memory


def repeated(content: bytes, size: int) -> memoryview:
    """`size` bytes of a content over and over; none where there is no content."""
    if not content:
        return memoryview(b"")
    return memoryview(bytearray((content * (size // len(content) + 1))[:size]))


Plan = Iterator[tuple[float, int, int]]
"""Transfers in order: (seconds from the session's start, class, bytes)."""


class SendingCore(Quiet):
    """Opens transfers as `plan` says, and sends their bytes in the queue's order."""

    def __init__(
        self, plan: Plan, load: Iterator[tuple[int, int]], at_once: int = 2, content: bytes = b""
    ) -> None:
        """`load`: (class, bytes) of transfers that follow one another, `at_once` of them open. `content`:
        what is sent, over and over; sevens where it is empty."""
        super().__init__()
        if content:
            self.memory = repeated(content, len(self.memory))
        self.opened: dict[int, tuple[float, int]] = {}  # by number: when in monotonic seconds, and class
        self._plan = plan
        self._load = load
        self._at_once = at_once
        self._next = next(plan, None)
        self._began = 0.0
        self._node = ""
        self._queue = SendQueue(LinePolicy())
        self._left: dict[bytes, tuple[int, int]] = {}  # (bytes sent, total)
        self._loads: set[bytes] = set()
        self._landing: dict[bytes, int] = {}  # blocks of loads that are sent and not complete there yet
        self._owed = 0  # loads that wait for those

    def on_session(self, now: float, peer: PeerInfo) -> None:
        self._began, self._node = now, peer.node
        for _ in range(self._at_once):
            self._more_load(now)
        super().on_session(now, peer)

    def on_message(self, now: float, node: str, message: Message, payload: bytes) -> None:
        if isinstance(message, Have) and self._landing.pop(message.ticket, 0) and self._owed:
            self._owed -= 1
            self._more_load(now)
            self.outbox.append(WakeBulk(node))

    def next_deadline(self) -> float | None:
        return self._began + self._next[0] if self._next and self._began else None

    def on_timer(self, now: float) -> None:
        while self._next is not None and self._began + self._next[0] <= now:
            _, cls, size = self._next
            self._open(now, cls, size)
            self._next = next(self._plan, None)
        self.outbox.append(WakeBulk(self._node))

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        ticket = self._queue.next()
        if ticket is None:
            return None
        at, total = self._left[ticket]
        block, offset = divmod(at, self.block_bytes)
        size = min(limit, total - at, self.block_bytes - offset)
        place = self.place(block, offset)
        data = self.memory[place : place + size]
        header = KvChunk(ticket, 0, 0, block, offset, size, 0, xxhash.xxh3_64_intdigest(data))
        self._queue.sent(ticket, size)
        if at + size < total:
            self._left[ticket] = (at + size, total)
            self._queue.acked(ticket, at + size)
        else:
            self._queue.close(ticket)
            del self._left[ticket]
            if ticket in self._loads:
                self._loads.discard(ticket)
                self._landing[ticket] = block + 1
                self._more_load(now)
        return OutChunk(header, data, 0)

    def _more_load(self, now: float) -> None:
        if sum(self._landing.values()) > LANDING:
            self._owed += 1
            return
        more = next(self._load, None)
        if more is not None:
            self._loads.add(self._open(now, *more))

    def _open(self, now: float, cls: int, size: int) -> bytes:
        number = len(self.opened)
        blocks = -(-size // self.block_bytes)
        total = blocks * self.block_bytes
        ticket = _TICKET.pack(number, blocks)
        self.opened[number] = (time.monotonic(), cls)
        self._left[ticket] = (0, total)
        self._queue.open(ticket, cls, total, now)
        self._queue.set_ready(ticket, True)
        return ticket


class ReceivingCore(Quiet):
    """Takes every chunk into a pool; calls `done` when `total` bytes are verified."""

    def __init__(self, total: int, done: Callable[[], None], content: bytes = b"") -> None:
        """`content`: what should come, if it is to be compared."""
        super().__init__()
        self._expected = bytes(repeated(content, len(self.memory)))
        self.ended: dict[int, float] = {}  # by number: when it was complete, in monotonic seconds
        self.progress: list[tuple[float, int]] = []  # (when, bytes so far), about every 20 ms
        self.wrong = 0
        self.broken = False
        """A connection was lost, and with it what was under way."""
        self._pool = BlockPool(POOL_BLOCKS)
        self._ledger = Ledger(self._pool, layout())
        self._total = total
        self._got = 0
        self._done = done

    def on_resumed(self, now: float, node: str) -> None:
        self.broken = True
        self._done()

    def chunk_buffer(self, node: str, chunk: KvChunk) -> memoryview | None:
        if self._ledger.get(chunk.ticket) is None:
            _, blocks = _TICKET.unpack(chunk.ticket)
            self._pool.promise(chunk.ticket, blocks)
            hashes = [xxhash.xxh3_128_digest(chunk.ticket + at.to_bytes(4, "big")) for at in range(blocks)]
            self._ledger.open(chunk.ticket, chunk.ticket, hashes, [], chunk.ticket)
        target = self._ledger.admit_chunk(chunk)
        if not isinstance(target, Target):
            return None
        base = target.block * self.block_bytes
        return self.memory[base + target.first : base + target.end]

    def on_chunk(self, now: float, node: str, chunk: KvChunk, data: memoryview, in_place: bool) -> None:
        if not in_place or xxhash.xxh3_64_intdigest(data) != chunk.checksum:
            self.wrong += 1
            return
        if self._expected:
            at = self.place(chunk.block, chunk.offset)
            # views would be compared number by number, which takes longer than all else that is done here
            self.wrong += data.tobytes() != self._expected[at : at + chunk.length]
        self._ledger.verified(chunk)
        self._got += chunk.length
        now = time.monotonic()
        if not self.progress or now - self.progress[-1][0] >= 0.02 or self._got >= self._total:
            self.progress.append((now, self._got))
        for ticket in self._ledger.take_changed():
            if ticket.complete:
                self.ended[_TICKET.unpack(ticket.ticket)[0]] = now
                self._pool.unpin(self._ledger.close(ticket))
                self._pool.unpromise(ticket.ticket)
                self._pool.drain_events()
                self.outbox.append(Send(node, Have(ticket.ticket, _NOBODY, complete=True)))
        if self._got >= self._total:
            self._done()

    def check(self) -> None:
        """Nothing is left in the pool. Raises InvariantBroken."""
        self._ledger.check()
        self._pool.check()
