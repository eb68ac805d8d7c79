"""One socket: bytes between the kernel and a `Connection`, and nothing kept that pool memory hangs on.

Received bytes go where the connection says, straight into a block where it is a chunk's. Written chunks are
handed to the event loop only when its write buffer is empty, and reported as written only once nothing
refers to their memory any more, also when the connection is lost. Knows no sessions and no messages.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from shared.errors import Remote
from shared.policy.flight import Flight
from shared.transport.direct import DirectReads
from shared.transport.security import names_of
from shared.wire.connection import Connection
from shared.wire.handshake import Agreed

_NOTSENT_LOWAT = 25
_SO_MAX_PACING_RATE = 47
# struct tcp_info of linux/tcp.h: 8 bytes of flags, 24 u32, then u64 and u32 that came later.
_MSS_AT, _SACKED_AT, _RTT_AT, _RETRANSMITS_AT, _ACKED_AT, _UNSENT_AT, _TCP_INFO_BYTES = (
    16,
    28,
    68,
    100,
    120,
    144,
    160,
)
_SENT_AT, _TCP_INFO_NEWER_BYTES = 200, 216
"""Bytes sent and bytes sent again, since Linux 4.19."""
_GATHER = 1 << 20
"""Bytes of chunks that are handed to the kernel in one call."""
_RETRY = 0.01
_LINGER = 1.0
_UNTOLD = 0.2


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """What the kernel says of a connection."""

    rtt: float  # seconds, smoothed
    least_rtt: float
    retransmits: int  # segments, ever
    delivered: int  # bytes that the other side has, ever: acknowledged, or selectively so
    unsent: int  # bytes that the kernel has not sent yet
    sent: int = 0  # bytes that have left, ever, each counted once
    apart: int = 0  # bytes of the delivered ones behind others that the other side still lacks


class StreamOwner(Protocol):
    """Who is told about a stream."""

    def on_made(self, stream: Stream) -> None:
        """The socket is connected; the handshake begins."""

    def on_bytes(self, stream: Stream) -> None:
        """Bytes came: the connection has events."""

    def on_chunks(self, stream: Stream) -> None:
        """The same while chunks are read directly; `on_turn` follows after as many as were here at once."""

    def on_turn(self, stream: Stream) -> None:
        """All that was here is taken, or enough for once."""

    def on_writable(self, stream: Stream) -> None:
        """All that was written is in the kernel: more may be written."""

    def on_end(self, stream: Stream, reason: str) -> None:
        """The connection is over; called once."""


class Stream(asyncio.BufferedProtocol):
    """A connection's socket."""

    def __init__(
        self, connection: Connection, owner: StreamOwner, *, dialled: bool, certified: bool = False
    ) -> None:
        """`certified`: the peer's certificate says who it may be."""
        self.connection = connection
        self.dialled = dialled
        self.peername = "?"
        self.opened: asyncio.Future[Agreed] = asyncio.get_running_loop().create_future()
        """Set by the owner when the handshake is over; cancelled where the connection ends before."""
        self.failure: Remote | None = None
        """Why this side, or the other, refused or broke the connection, where one of them did."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flight = Flight()
        self.over = False
        """No event of this stream counts any more, though its socket may still be closing."""
        self._owner = owner
        self._get_buffer = connection.get_buffer  # called for every few packets
        self._buffer_updated = connection.buffer_updated
        self._certified = certified
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._paused = False
        self._held = False
        self._direct: DirectReads | None = None
        self._junk: memoryview | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._written: list[tuple[memoryview, Callable[[bool], None]]] = []
        self._gathered: list[bytes | memoryview] = []
        self._gathered_bytes = 0

    # --- what the loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # From the first byte on that is kept: encrypted connections are full at the mark, others above it.
        encrypted = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=int(encrypted), low=0)
        self._socket = transport.get_extra_info("socket")
        self.peername = _readable(transport.get_extra_info("peername"))
        self.set_option(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._certified:
            self.connection.certified(names_of(transport.get_extra_info("peercert")))
        self._owner.on_made(self)
        self.write(self.connection.take_output())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if not self.over:
            return self._get_buffer()
        if self._junk is None:
            self._junk = memoryview(bytearray(1 << 16))
        return self._junk

    def buffer_updated(self, nbytes: int) -> None:
        if not self.over and self._buffer_updated(nbytes):
            self._owner.on_bytes(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._settle(sent=True)
        if not self.over:
            self._owner.on_writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closed.done():
            return
        self._end("closed by the other side" if exc is None else str(exc) or type(exc).__name__)
        if self._linger is not None:
            self._linger.cancel()
        self._transport = self._socket = None
        self._settle_lost()
        self.closed.set_result(None)

    # --- what its owner calls ---

    async def settled(self) -> None:
        """Returns when the handshake is over, or the connection."""
        ends: tuple[asyncio.Future[Agreed] | asyncio.Future[None], ...] = (self.opened, self.closed)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)

    @property
    def wants_bytes(self) -> bool:
        """Whether what is written now goes to the kernel at once."""
        return self._transport is not None and not self._paused and not self.over

    def write(self, data: bytes) -> None:
        """Control bytes; the caller asks `wants_bytes` first where it may have much."""
        if data and self._transport is not None and not self.over:
            self.push()
            self._transport.write(data)

    def write_chunk(self, head: bytes, data: memoryview, done: Callable[[bool], None]) -> None:
        """A chunk, handed on with the next `push` at the latest. `done(sent)` is called once nothing refers
        to `data`: now, later, or after the connection's end."""
        assert self._transport is not None
        view = data[:]
        self._written.append((view, done))
        self._gathered += (head, view)
        self._gathered_bytes += len(view)
        if self._gathered_bytes >= _GATHER:
            self.push()

    def push(self) -> None:
        """Hand the chunks that were gathered to the event loop, in one call."""
        if not self._gathered or self._transport is None:
            return
        parts, self._gathered, self._gathered_bytes = self._gathered, [], 0
        self._transport.writelines(parts)
        del parts
        if not self._paused:
            self._settle(sent=True)

    def close(self, reason: str, last_words: bytes = b"") -> None:
        """End after what is buffered, and these bytes, were sent; in any case within a second."""
        self.write(last_words)
        self._end(reason)
        if self._transport is not None:
            self._transport.close()
            self._linger = asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)

    def abort(self, reason: str) -> None:
        """End at once."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()
            # uvloop forgets to tell of the end where the task that connects is cancelled in that moment
            asyncio.get_running_loop().call_later(_UNTOLD, self.connection_lost, None)

    def hold(self, held: bool) -> None:
        """Read no more for the moment, or again."""
        if self._transport is None or held == self._held:
            return
        self._held = held
        if self._direct is not None:
            self._direct.hold(held)
        elif held:
            self._transport.pause_reading()
        elif not self.over:
            self._transport.resume_reading()

    def read_directly(self) -> None:
        """From here on nearly all bytes are chunks'. An encrypted connection goes on as before."""
        transport = self._transport
        if transport is None or self._socket is None or self.over or transport.get_extra_info("sslcontext"):
            return
        transport.pause_reading()
        self._direct = DirectReads(
            self._socket.fileno(),
            self.connection.get_buffers,
            self._buffer_updated,
            partial(self._owner.on_chunks, self),
            partial(self._owner.on_turn, self),
            self._read_to_end,
        )

    def set_option(self, level: int, option: int, value: int | bytes) -> None:
        """Set a socket option; a kernel that does not know it is let be."""
        if self._socket is not None:
            try:
                self._socket.setsockopt(level, option, value)
            except OSError:
                return

    def tune(
        self, *, unsent: int = 0, congestion: str = "", dscp: int = 0, pace: int = 0, timeout: float = 0
    ) -> None:
        """How the kernel treats this connection: unsent bytes it buffers, congestion control, DSCP, burst
        limit in bytes/s, seconds that data may stay unacknowledged. 0 and "": the kernel's default."""
        if unsent:
            self.set_option(socket.IPPROTO_TCP, _NOTSENT_LOWAT, unsent)
        if congestion:
            self.set_option(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        if dscp:
            self.set_option(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            self.set_option(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
        if pace:
            self.set_option(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("Q", pace))  # no int holds it
        if timeout:
            self.set_option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout * 1000))

    def outstanding(self) -> int:
        """Bytes written that the other side has not acknowledged."""
        if self._socket is None or self._transport is None:
            return 0
        queued = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
        return int(queued) + self._transport.get_write_buffer_size()

    def info(self) -> TcpInfo | None:
        """The kernel's view; None where it has none or the connection is over."""
        if self._socket is None:
            return None
        try:
            raw = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_NEWER_BYTES)
        except OSError:
            return None
        if len(raw) < _TCP_INFO_BYTES:
            return None
        rtt = struct.unpack_from("<I", raw, _RTT_AT)[0]
        retransmits = struct.unpack_from("<I", raw, _RETRANSMITS_AT)[0]
        sacked = struct.unpack_from("<I", raw, _SACKED_AT)[0] * struct.unpack_from("<I", raw, _MSS_AT)[0]
        delivered = struct.unpack_from("<Q", raw, _ACKED_AT)[0] + sacked
        unsent, least = struct.unpack_from("<II", raw, _UNSENT_AT)
        sent = delivered
        if len(raw) >= _TCP_INFO_NEWER_BYTES:
            ever, again = struct.unpack_from("<QQ", raw, _SENT_AT)
            sent = ever - again
        return TcpInfo(rtt / 1e6, least / 1e6, retransmits, delivered, unsent, sent, sacked)

    # --- inside ---

    def _read_to_end(self, reason: str) -> None:
        if reason:
            self.abort(reason)
        elif self._transport is not None:
            self._transport.close()

    def _end(self, reason: str) -> None:
        if not self.over:
            self.over = True
            self._gathered.clear()
            if self._direct is not None:
                self._direct.stop()
            self.opened.cancel()
            self._owner.on_end(self, reason)

    def _settle(self, *, sent: bool) -> None:
        """Report chunks whose memory nothing refers to any more."""
        if not self._written or (self._transport is not None and self._transport.get_write_buffer_size()):
            return
        waiting, self._written = self._written, []
        for view, done in waiting:
            try:
                view.release()
            except BufferError:  # a write buffer still refers to it
                self._written.append((view, done))
            else:
                done(sent)

    def _settle_lost(self) -> None:
        """After the connection's end the loop may still hold its write buffer for a moment."""
        self._settle(sent=False)
        if self._written:
            asyncio.get_running_loop().call_later(_RETRY, self._settle_lost)


def _readable(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        return f"{address[0]}:{address[1]}"
    return str(address)
