"""What the sockets say: bytes to events, events to sessions and the core, errors to ended connections.

Bad bytes end their connection and nothing else. Knows no dialling, no listening, and none of the core's
wishes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog

from shared.errors import InvariantBroken, ProtocolError, Remote, UnexpectedMessage
from shared.policy.config import LinkPolicy
from shared.transport.book import Book
from shared.transport.intake import Intake
from shared.transport.peer import Peer
from shared.transport.pulse import Pulse
from shared.transport.tcp import Stream
from shared.wire.connection import (
    ChunkDone,
    ChunkStart,
    Event,
    LinkMessage,
    Numbered,
    Opened,
    State,
)
from shared.wire.messages import Goodbye, LineShare, Message, Ping, Pong, Role
from shared.wire.port import ControlCore

_MOST_PENDING = 256
"""Accepted connections whose handshake is not over, and hosts whose last complaint is remembered."""


class Inbound:
    """The owner of all streams of an endpoint. `perform` does what the core then asks for."""

    def __init__(
        self,
        core: ControlCore,
        book: Book,
        intake: Intake | None,
        pulse: Pulse,
        policy: LinkPolicy,
        role: Role,
        clock: Callable[[], float],
        counters: Counter[str],
        perform: Callable[[float], None],
    ) -> None:
        self.streams: set[Stream] = set()
        """All that are not closed yet."""
        self.closing = False
        """Whether new connections are turned away."""
        self._core = core
        self._book = book
        self._intake = intake
        self._pulse = pulse
        self._policy = policy
        self._role = role
        self._clock = clock
        self._counters = counters
        self._perform = perform
        self._complaints: dict[str, str] = {}
        self._log = structlog.get_logger().bind(node=book.node)

    # --- StreamOwner ---

    def on_made(self, stream: Stream) -> None:
        self.streams.add(stream)
        stream.closed.add_done_callback(lambda _: self.streams.discard(stream))
        pending = sum(1 for known in self.streams if not known.opened.done())
        if self.closing or pending > _MOST_PENDING:
            stream.abort("too many connections wait for their handshake")
            return
        late = asyncio.get_running_loop().call_later(self._policy.handshake_timeout, self._late, stream)
        stream.opened.add_done_callback(lambda _: late.cancel())

    def _late(self, stream: Stream) -> None:
        self._counters["handshake_timeouts"] += 1
        stream.abort("the handshake took too long")

    def on_bytes(self, stream: Stream) -> None:
        peer = self._book.of(stream)
        if peer is not None and self._intake is not None and stream is not peer.control:
            self.on_chunks(stream)
            self.on_turn(stream)
            return
        now = self._clock()
        try:
            while not stream.over and (event := stream.connection.next_event()) is not None:
                self._on_event(stream, event, now)
        except Remote as error:
            self._break(stream, error, now)
        if stream.connection.has_output:
            stream.write(stream.connection.take_output())
        self._heard(stream, now)
        self._perform(now)

    def on_chunks(self, stream: Stream) -> None:
        peer, intake = self._book.of(stream), self._intake
        if peer is None or intake is None:
            return
        now = self._clock()
        try:
            while not stream.over and (event := stream.connection.next_event()) is not None:
                if isinstance(event, ChunkDone):
                    intake.done(stream, now, event)
                elif isinstance(event, ChunkStart):
                    if not intake.start(stream, peer, event):
                        break
                else:
                    self._on_event(stream, event, now)
        except Remote as error:
            self._break(stream, error, now)

    def on_turn(self, stream: Stream) -> None:
        now = self._clock()
        self._heard(stream, now)
        self._perform(now)

    def _heard(self, stream: Stream, now: float) -> None:
        """A peer gives a sign of life."""
        peer = self._book.of(stream)
        if peer is None:
            return
        control = stream is peer.control
        suspect = peer.liveness.heard(now, control=control)
        if suspect:
            self._pulse.tick(peer, now)
        if suspect or control:
            peer.flush(now)

    def on_writable(self, stream: Stream) -> None:
        now = self._clock()
        peer = self._book.of(stream)
        if peer is None:
            return
        if stream is peer.control:
            peer.flush(now)
        else:
            peer.line.wake(peer)
            peer.line.turn(now)
        self._perform(now)

    def on_end(self, stream: Stream, reason: str) -> None:
        now = self._clock()
        if self._intake is not None:
            self._intake.end(stream)
        peer = self._book.ended(stream, now)
        if peer is None:
            return
        if self._book.peers.get(peer.node) is peer and not self.closing:
            control = stream.connection.state is State.CONTROL
            self._log.info("connection lost", peer=peer.node, control=control, reason=reason)
        self._perform(now)

    # --- events ---

    def _on_event(self, stream: Stream, event: Event, now: float) -> None:
        if isinstance(event, Opened):
            if self._book.opened(stream, event.agreed, now) and not stream.opened.done():
                stream.opened.set_result(event.agreed)
            return
        peer = self._book.of(stream)
        if peer is None:
            raise InvariantBroken(f"{type(event).__name__} on a connection of no session")
        match event:
            case Numbered(frame):
                self._counters["control_bytes_in"] += len(frame.header) + len(frame.payload)
                received = peer.session.receive(frame)
                if received is not None:
                    self._on_message(peer, now, *received)
            case LinkMessage():
                self._on_link(peer, event, now)
            case ChunkStart():
                self._taking(peer).start(stream, peer, event)
            case ChunkDone():
                self._taking(peer).done(stream, now, event)

    def _on_message(self, peer: Peer, now: float, message: Message, payload: bytes) -> None:
        if isinstance(message, LineShare) and self._role is not Role.ROUTER:
            line = self._book.lines.get(message.line)
            if line is not None:
                ttl = message.ttl_ms / 1000
                line.shares.grant(
                    now, peer.node, message.seq, message.rate, ttl, message.senders, message.oldest
                )
                line.turn(now)
            return
        self._core.on_message(now, peer.node, message, payload)

    def _on_link(self, peer: Peer, event: LinkMessage, now: float) -> None:
        peer.session.receive(event.frame)
        match event.message:
            case Ping(stamp):
                peer.answer(stamp)
            case Pong(stamp, decodes):
                peer.heard_decoding(decodes)
                peer.line.heard_rtt(max(0.0, now - stamp / 1e6))
            case Goodbye(reason):
                self._book.lose(peer, now, f"goodbye: {reason}")

    def _taking(self, peer: Peer) -> Intake:
        if self._intake is None:
            raise UnexpectedMessage(f"a chunk from {peer.node} at a node that takes none")
        return self._intake

    # --- errors ---

    def _break(self, stream: Stream, error: Remote, now: float) -> None:
        """End a connection whose bytes, or whose peer, cannot be accepted."""
        stream.failure = error
        self._counters[f"refused_{error.code}"] += 1
        peer = self._book.of(stream)
        if not stream.dialled or peer is not None:
            self._complain(stream, error)
        hopeless = (
            peer is not None
            and stream is peer.control
            and isinstance(error, ProtocolError)
            and peer.session.failed()
        )
        stream.close(str(error), stream.connection.last_words())
        if peer is not None and hopeless:
            self._book.lose(peer, now, str(error))

    def _complain(self, stream: Stream, error: Remote) -> None:
        """Log why a connection was ended, once for each host until it changes."""
        host = stream.peername.rpartition(":")[0]
        text = f"{error.code}: {error}"
        if self._complaints.get(host) == text:
            return
        if len(self._complaints) >= _MOST_PENDING:
            self._complaints.clear()
        self._complaints[host] = text
        self._log.warning("connection refused", address=stream.peername, code=error.code, reason=str(error))
