"""One node at the other end of a session: its connections, what is written to them, and its signs of life.

A control connection and any number of bulk connections carry one session in turn. Everything that happens
is reported to the endpoint; nothing here calls a core but to fetch the next chunk. Knows no dialling and no
listening.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

from shared.errors import InvariantBroken
from shared.policy.config import LinkPolicy
from shared.policy.flow import UNLIMITED
from shared.transport.ahead import Ahead
from shared.transport.compression import AS_IS
from shared.transport.line import Line
from shared.transport.tcp import Stream, TcpInfo
from shared.wire.codec import encode
from shared.wire.framing import chunk_head, frame_bytes
from shared.wire.handshake import Agreed
from shared.wire.liveness import Liveness
from shared.wire.messages import Goodbye, Ping, Pong
from shared.wire.port import OutChunk
from shared.wire.session import Session

_BATCH = 32 << 10
"""Control bytes put into the socket at once: what comes later may still pass what waits."""


class ChunkSource(Protocol):
    """Where a peer's chunks come from."""

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None: ...

    def chunk_written(self, node: str, key: int, sent: bool) -> None: ...


class Peer:
    """State of one session's connections on this side."""

    def __init__(
        self,
        agreed: Agreed,
        policy: LinkPolicy,
        line: Line,
        source: ChunkSource | None,
        counters: Counter[str],
        now: float,
        ahead: Ahead | None = None,
        decodes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`ahead`: where chunks wait to be encoded; None: none ever is. `decodes`: the bytes/s that this side
        can decode."""
        self.node = agreed.peer.node
        self.info = agreed.peer
        self.session = Session(agreed.session, agreed.peer, policy)
        self.max_chunk = agreed.max_chunk or policy.max_chunk
        """Bytes of a chunk that the peer takes at most."""
        self.line = line
        self.control: Stream | None = None
        self.bulk: dict[int, Stream] = {}
        self.had_bulk: set[int] = set()
        """Bulk connections that existed before: another with the same number may have lost bytes."""
        self.liveness = Liveness(policy, now)
        self.over = False
        """The session has ended."""
        self._policy = policy
        self._source = source
        self._counters = counters
        self._ahead = ahead
        self._decodes = decodes
        self._pong: int | None = None
        self._ping = False
        self._turn = 0
        self._refused = False  # the source had chunks and no socket wanted them
        self._late = False  # one would have, but its bytes are late
        self._progress: dict[int, tuple[int, float]] = {}  # bulk connection -> (delivered, since)
        line.join(self)

    # --- connections ---

    def carry(self, stream: Stream, now: float) -> Stream | None:
        """A new control connection; the one that it fences, which the caller ends."""
        old, self.control = self.control, stream
        self._pong = None
        self.liveness.connected(now)
        return old

    def add_bulk(self, index: int, stream: Stream) -> Stream | None:
        """A new bulk connection; the one that it fences."""
        old = self.bulk.get(index)
        self.bulk[index] = stream
        self._progress.pop(index, None)
        return old

    def drop(self, stream: Stream, now: float) -> bool:
        """A connection of this peer is over; whether it still counted."""
        if stream is self.control:
            self.control = None
            self.liveness.disconnected(now)
            return True
        for index, known in self.bulk.items():
            if known is stream:
                del self.bulk[index]
                self._progress.pop(index, None)
                return True
        return False

    def streams(self) -> list[Stream]:
        return [*([self.control] if self.control is not None else []), *self.bulk.values()]

    def leave(self) -> None:
        """The session is over."""
        self.over = True
        self.recall()
        self.line.leave(self)

    # --- control ---

    def ping(self) -> None:
        self._ping = True

    def answer(self, stamp: int) -> None:
        """A Ping came; only the last one is worth an answer."""
        self._pong = stamp

    def flush(self, now: float) -> None:
        """Put control frames into the socket while it takes them, most urgent first."""
        stream = self.control
        if stream is None:
            return
        if stream.wants_bytes and (self._ping or self._pong is not None):
            self._write(stream, now, self._link_frames(now))
        resent = self.session.resent_bytes
        while stream.wants_bytes and self.session.wants_to_send:
            frames: list[bytes] = []
            size = 0
            while size < _BATCH and (frame := self.session.next_frame(now)) is not None:
                frames.append(frame_bytes(frame))
                size += len(frames[-1])
            self._write(stream, now, frames)
        if self.session.resent_bytes > resent:
            self._counters["control_bytes_resent"] += self.session.resent_bytes - resent

    def goodbye(self, reason: str) -> None:
        """Say that this session is over for good, behind all that is queued."""
        if self.control is not None:
            words = frame_bytes(self.session.link_frame(Goodbye(reason[:200])))
            self.control.close(f"goodbye: {reason}", words)

    def confirm(self, stream: Stream) -> None:
        """Tell the dialling side that its connection was taken."""
        stream.write(frame_bytes(self.session.ack_frame()))

    def _link_frames(self, now: float) -> list[bytes]:
        frames = []
        if self._pong is not None:
            frames.append(frame_bytes(self.session.link_frame(Pong(self._pong, self._decodes()))))
            self._pong = None
        if self._ping:
            frames.append(frame_bytes(self.session.link_frame(Ping(int(now * 1e6)))))
            self._ping = False
        return frames

    def _write(self, stream: Stream, now: float, frames: list[bytes]) -> None:
        data = b"".join(frames)
        self._counters["control_bytes_out"] += len(data)
        self.line.charge(now, len(data))
        stream.write(data)

    # --- bulk ---

    def send_one(self, now: float, limit: int) -> int:
        """One chunk into the next bulk connection that wants bytes; the bytes written."""
        if self._source is None:
            return 0
        stream = self._writable(now)
        self._refused = stream is None and bool(self.bulk)
        if stream is None:
            return 0
        if self._ahead is None:
            chunk = self._source.next_chunk(now, self.node, min(limit, self.max_chunk))
        else:
            chunk = self._next(self._ahead, self._source, now, min(limit, self.max_chunk))
        if chunk is None:
            self._note_idle()
            return 0
        if self._ahead is not None:
            self._ahead.gauge.sent(now, chunk.header.length, self._rate(now))
        header, size = chunk.header, len(chunk.data)
        if header.length != size and header.encoding == AS_IS:
            raise InvariantBroken(f"a chunk of {size} bytes is named one of {header.length}")
        self._turn += 1
        head = chunk_head(encode(header), size)
        if self.line.spec is not None:
            stream.flight.gave(now, len(head) + size)
        self._counters["chunk_bytes_out"] += size
        self.line.carried(header.length, size)
        stream.write_chunk(head, chunk.data, partial(self._source.chunk_written, self.node, chunk.key))
        return len(head) + size

    def push(self) -> None:
        """Hand the chunks of `send_one` to the kernel."""
        for stream in self.bulk.values():
            stream.push()

    def recall(self) -> None:
        """Give back the chunks that were taken early and not written: they are asked for anew."""
        if self._ahead is not None and self._source is not None:
            for key in self._ahead.recall():
                self._source.chunk_written(self.node, key, False)

    def heard_decoding(self, rate: int) -> None:
        """The other side can decode this many bytes/s; 0: it does not know yet."""
        if self._ahead is not None:
            self._ahead.gauge.other_side(rate)

    def blocked(self) -> bool:
        return self._refused and (self._late or not any(stream.wants_bytes for stream in self.bulk.values()))

    def held(self) -> bool:
        return self._refused and self._late

    def infos(self) -> list[TcpInfo]:
        return [info for stream in self.bulk.values() if (info := stream.info()) is not None]

    def keep_unsent(self, size: int) -> None:
        for stream in self.bulk.values():
            stream.tune(unsent=size)

    def stalled(self, now: float) -> list[Stream]:
        """Bulk connections on which written bytes have stayed unacknowledged for too long."""
        found = []
        for index, stream in self.bulk.items():
            info = stream.info()
            if info is None:
                continue
            delivered, since = self._progress.get(index, (-1, now))
            if info.delivered != delivered or not stream.outstanding():
                self._progress[index] = (info.delivered, now)
            elif now - since >= self._policy.bulk_stall:
                found.append(stream)
        return found

    def _next(self, ahead: Ahead, source: ChunkSource, now: float, limit: int) -> OutChunk | None:
        """The chunk to write now where chunks are encoded: the next ones are taken here, so that they are
        ready when the socket is."""
        if not len(ahead):
            chunk = source.next_chunk(now, self.node, limit)
            if chunk is None or not self._encodes(ahead, now):
                return chunk
            ahead.put(chunk, encode=True)
        self._fill(ahead, source, now, limit)
        chunk = ahead.pop()
        if chunk is not None:
            self._fill(ahead, source, now, limit)
        return chunk

    def _fill(self, ahead: Ahead, source: ChunkSource, now: float, limit: int) -> None:
        while ahead.room and (chunk := source.next_chunk(now, self.node, limit)) is not None:
            ahead.put(chunk, encode=self._encodes(ahead, now))

    def _encodes(self, ahead: Ahead, now: float) -> bool:
        return ahead.gauge.wants(now, self._rate(now))

    def _rate(self, now: float) -> float:
        """Bytes/s that the line carries and this node may use; 0: unknown."""
        view = self.line.view(now)
        return min(view.rate, view.share)

    def _note_idle(self) -> None:
        """Nothing is there to send, unless it is just being encoded."""
        if self._ahead is not None and not len(self._ahead):
            self._ahead.gauge.idle()

    def _writable(self, now: float) -> Stream | None:
        self._late = False
        patience = self.line.patience
        streams = list(self.bulk.values())
        if len(streams) == 1 and patience == UNLIMITED:
            return streams[0] if streams[0].wants_bytes else None
        for step in range(len(streams)):
            stream = streams[(self._turn + step) % len(streams)]
            if not stream.wants_bytes:
                continue
            if patience == UNLIMITED or not self._is_late(stream, now, patience):
                return stream
            self._late = True
        return None

    def _is_late(self, stream: Stream, now: float, patience: float) -> bool:
        """Whether a connection is to be given no more for the moment. What is only behind something lost has
        arrived."""
        most, flight = min(self.line.chunk_limit(), self.max_chunk), stream.flight
        flight.seen(now, stream.outstanding())
        if not flight.late(now, patience, most) or (info := stream.info()) is None:
            return False
        flight.seen(now, stream.outstanding() - info.apart)
        return flight.late(now, patience, most)
