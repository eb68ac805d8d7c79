"""A node's place in the mesh: it listens, dials, and serves one core.

What the sockets say goes to the core with the time; what the core leaves in its outbox is performed at once
after. All of it happens in the loop's thread. No core is called from within its own call, but for
`chunk_written`, which `next_chunk`'s caller may report at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import structlog

from shared.errors import InvariantBroken, Overflow, ProtocolError, Remote, UnexpectedMessage
from shared.policy.config import LinePolicy, LinkPolicy
from shared.transport.book import Book
from shared.transport.dialling import Dialling, Target
from shared.transport.intake import Intake
from shared.transport.line import Line, LineSpec, LineView
from shared.transport.peer import Peer
from shared.transport.security import Tls, TlsFiles, check_bind, check_key
from shared.transport.tcp import Stream
from shared.wire.connection import (
    ChunkDone,
    ChunkStart,
    Connection,
    Event,
    LinkMessage,
    Numbered,
    Opened,
    State,
)
from shared.wire.handshake import NONCE_BYTES, Dialler, Handshake, Identity, Listener
from shared.wire.liveness import Act, Liveness
from shared.wire.messages import Goodbye, LineShare, Message, Ping, Pong, Role
from shared.wire.port import BulkCore, ControlCore, Dial, Instruction, OutChunk, Send, WakeBulk

_MOST_PENDING = 256
"""Accepted connections whose handshake is not over."""
_LEAST_DELAY = 0.0005
"""Seconds until a core's timer at least, whatever it asks for."""


class Endpoint:
    """`lines` are the mesh's; those that touch this node's datacenter count. `route` turns (node,
    host:port) into the host and port to dial, for peers that the core names. `clock` gives monotonic
    seconds: the `now` of every call of the core."""

    def __init__(
        self,
        identity: Identity,
        core: ControlCore | BulkCore,
        policy: LinkPolicy,
        line_policy: LinePolicy | None = None,
        *,
        lines: Sequence[LineSpec] = (),
        key: bytes | None = None,
        tls: TlsFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        route: Callable[[str, str], tuple[str, int]] | None = None,
    ) -> None:
        check_key(key)
        self.identity = identity
        self.counters: Counter[str] = Counter()
        self._core = core
        self._bulk = cast(BulkCore, core) if hasattr(core, "next_chunk") else None
        self._policy = policy
        self._key = key
        self._tls = Tls(tls) if tls is not None else None
        self._clock = clock
        self._route = route or _split
        self._log = structlog.get_logger().bind(node=identity.node)
        source = self if self._bulk is not None else None
        self._book = Book(
            identity,
            core,
            policy,
            line_policy or LinePolicy(),
            lines,
            source,
            clock,
            self.counters,
            self._perform_soon,
        )
        self._intake = Intake(self._bulk, policy.max_chunk) if self._bulk is not None else None
        self._streams: set[Stream] = set()
        self._servers: list[asyncio.Server] = []
        self._dials: dict[str, Dialling] = {}
        self._performing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._heart: asyncio.TimerHandle | None = None
        self._soon = False
        self._closing = False
        self._complaints: dict[str, str] = {}

    # --- what a service calls ---

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; the port (the one that was free, for port 0). Raises ConfigError where anyone
        could reach it without a key, OSError where the address cannot be had."""
        check_bind(host, key=self._key, tls=self._tls is not None)
        self._start()
        server = await asyncio.get_running_loop().create_server(
            self._accept,
            host,
            port,
            ssl=self._tls.server if self._tls else None,
            ssl_handshake_timeout=self._policy.handshake_timeout if self._tls else None,
        )
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    def dial(self, node: str, host: str, port: int, bulk: int) -> None:
        """Keep a session to a node, with `bulk` bulk connections. A no-op where it is kept already; another
        address replaces the old one."""
        self._start()
        key = node or f"{host}:{port}"
        known = self._dials.get(key)
        if known is not None:
            if (known.target.host, known.target.port) == (host, port):
                return
            known.cancel()
        self._dials[key] = dialling = Dialling(self, Target(node, host, port, bulk), self._policy)
        dialling.start()

    def undial(self, node: str) -> None:
        """Keep that session no longer; an open one stays until it breaks."""
        dialling = self._dials.pop(node, None)
        if dialling is not None:
            dialling.cancel()

    def perform(self, now: float) -> None:
        """Do what the core's outbox asks for; call after every call into the core from outside."""
        if self._performing:
            return
        self._performing = True
        try:
            while instructions := self._core.take_outbox():
                self._obey(instructions, now)
        finally:
            self._performing = False
        self._arm(now)

    def line_for(self, node: str) -> LineView | None:
        """The line to a node with a live session."""
        peer = self._book.peers.get(node)
        return peer.line.view(self._clock()) if peer is not None else None

    def lines(self) -> dict[str, LineView]:
        """All lines used so far, by name."""
        return {name: line.view(self._clock()) for name, line in self._book.lines.items()}

    def sessions(self) -> list[str]:
        """Nodes with a live session."""
        return list(self._book.peers)

    def reload_tls(self) -> None:
        """Take renewed certificate files for connections made from now on. Raises ConfigError."""
        if self._tls is not None:
            self._tls.reload()

    async def close(self, goodbye: str = "stopped") -> None:
        """Say goodbye to all peers, end all connections, listen no longer."""
        self._closing = True
        for server in self._servers:
            server.close()
        await asyncio.gather(*(dialling.stop() for dialling in self._dials.values()))
        now = self._clock()
        self.perform(now)
        for peer in list(self._book.peers.values()):
            peer.flush(now)
            peer.goodbye(goodbye)
        for stream in list(self._streams):
            if not stream.over:
                stream.abort("endpoint closed")
        for handle in (self._heart, self._timer):
            if handle is not None:
                handle.cancel()
        for line in self._book.lines.values():
            line.close()
        while self._streams:
            await asyncio.wait([stream.closed for stream in self._streams])

    # --- what the core's outbox asks for ---

    def _obey(self, instructions: list[Instruction], now: float) -> None:
        written: dict[str, Peer] = {}
        lines: dict[str, Line] = {}
        for instruction in instructions:
            match instruction:
                case Send():
                    peer = self._push(instruction, now)
                    if peer is not None:
                        written[peer.node] = peer
                case WakeBulk(node):
                    peer = self._book.peers.get(node)
                    if peer is not None:
                        peer.line.wake(peer)
                        lines[peer.line.name] = peer.line
                case Dial():
                    self._dial(instruction)
        for peer in written.values():
            peer.flush(now)
        for line in lines.values():
            line.turn(now)

    def _push(self, send: Send, now: float) -> Peer | None:
        peer = self._book.peers.get(send.node)
        if peer is None:
            self.counters["dropped_sends"] += 1
            return None
        try:
            peer.session.push(now, send.message, send.payload)
        except Overflow as error:
            self._book.lose(peer, now, str(error))
            return None
        return peer

    def _dial(self, wanted: Dial) -> None:
        host, port = self._route(wanted.node, wanted.address)
        self.dial(wanted.node, host, port, self._book.bulk_connections(wanted.role, wanted.datacenter))

    # --- what the sockets say (StreamOwner) ---

    def on_made(self, stream: Stream) -> None:
        self._streams.add(stream)
        stream.closed.add_done_callback(lambda _: self._streams.discard(stream))
        pending = sum(1 for known in self._streams if not known.opened.done())
        if self._closing or pending > _MOST_PENDING:
            stream.abort("too many connections wait for their handshake")
            return
        late = asyncio.get_running_loop().call_later(
            self._policy.handshake_timeout, stream.abort, "the handshake took too long"
        )
        stream.opened.add_done_callback(lambda _: late.cancel())

    def on_bytes(self, stream: Stream) -> None:
        now = self._clock()
        try:
            while not stream.over and (event := stream.connection.next_event()) is not None:
                self._on_event(stream, event, now)
        except Remote as error:
            self._break(stream, error, now)
        stream.write(stream.connection.take_output())
        peer = self._book.of(stream)
        if peer is not None:
            peer.liveness.heard(now, control=stream is peer.control)
            if peer.liveness.suspect:
                self._tick(peer, now)
            peer.flush(now)
            peer.line.turn(now)
        self.perform(now)

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
        self.perform(now)

    def on_end(self, stream: Stream, reason: str) -> None:
        if self._intake is not None:
            self._intake.end(stream)
        peer = self._book.ended(stream, self._clock())
        if peer is not None:
            control = stream.connection.state is State.CONTROL
            self._log.info("connection lost", peer=peer.node, control=control, reason=reason)
        self._perform_soon()

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
                received = peer.session.receive(frame)
                if received is not None:
                    self._on_message(peer, now, *received)
            case LinkMessage():
                self._on_link(peer, event, now)
            case ChunkStart():
                self._taking(peer).start(stream, peer.node, event)
            case ChunkDone():
                self._taking(peer).done(stream, now, event)

    def _on_message(self, peer: Peer, now: float, message: Message, payload: bytes) -> None:
        if isinstance(message, LineShare) and self.identity.role is not Role.ROUTER:
            line = self._book.lines.get(message.line)
            if line is not None:
                ttl = message.ttl_ms / 1000
                line.shares.grant(now, peer.node, message.seq, message.rate, ttl, message.senders)
            return
        self._core.on_message(now, peer.node, message, payload)

    def _on_link(self, peer: Peer, event: LinkMessage, now: float) -> None:
        peer.session.receive(event.frame)
        match event.message:
            case Ping(stamp):
                peer.answer(stamp)
            case Pong(stamp):
                peer.line.heard_rtt(max(0.0, now - stamp / 1e6))
            case Goodbye(reason):
                self._book.lose(peer, now, f"goodbye: {reason}")

    def _taking(self, peer: Peer) -> Intake:
        if self._intake is None:
            raise UnexpectedMessage(f"a chunk from {peer.node} at a node that takes none")
        return self._intake

    def _break(self, stream: Stream, error: Remote, now: float) -> None:
        """End a connection whose bytes, or whose peer, cannot be accepted."""
        stream.failure = error
        self.counters[f"refused_{error.code}"] += 1
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

    # --- chunks on their way out (ChunkSource) ---

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        return self._bulk.next_chunk(now, node, limit) if self._bulk is not None else None

    def chunk_written(self, node: str, key: int, sent: bool) -> None:
        if self._bulk is not None:
            self._bulk.chunk_written(self._clock(), node, key, sent)
            self._perform_soon()

    # --- connections that are made here (DialOwner) ---

    def control_of(self, node: str) -> Stream | None:
        peer = self._book.peers.get(node)
        return peer.control if peer is not None else None

    async def connect(self, target: Target, bulk: int) -> Stream:
        peer = self._book.peers.get(target.node)
        if bulk and peer is None:
            raise ConnectionError("no session")
        session, incarnation = target.unconfirmed
        last_seq = 0
        if peer is not None:
            session, incarnation = peer.session.number, peer.info.incarnation
            last_seq = peer.session.last_seq
        handshake = Dialler(
            self.identity,
            self._key,
            os.urandom(NONCE_BYTES),
            node=target.node,
            bulk=bulk,
            session=session,
            peer_incarnation=incarnation,
            last_seq=last_seq,
        )
        stream = Stream(self._connection(handshake), self, dialled=True)
        try:
            async with asyncio.timeout(self._policy.handshake_timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: stream, target.host, target.port, ssl=self._tls.client if self._tls else None
                )
                await stream.settled()
            if not stream.opened.done() or stream.opened.cancelled():
                raise stream.failure or ConnectionError("the other side closed during the handshake")
        except BaseException:
            if not bulk and handshake.agreed is not None:
                target.unconfirmed = (handshake.agreed.session, handshake.agreed.peer.incarnation)
            stream.abort("not connected")
            raise
        if not bulk:
            target.node = stream.opened.result().peer.node
            target.unconfirmed = (0, 0)
        return stream

    def _accept(self) -> Stream:
        handshake = Listener(self.identity, self._key, os.urandom(NONCE_BYTES), self._book.offer)
        return Stream(self._connection(handshake), self, dialled=False)

    def _connection(self, handshake: Handshake) -> Connection:
        return Connection(handshake, max_chunk=self._policy.max_chunk)

    # --- time ---

    def _start(self) -> None:
        if self._heart is None:
            self._heart = asyncio.get_running_loop().call_later(Liveness.period(self._policy), self._beat)

    def _beat(self) -> None:
        now = self._clock()
        for peer in list(self._book.peers.values()):
            self._tick(peer, now)
            for stream in peer.stalled(now):
                self.counters["bulk_stalls"] += 1
                stream.abort(f"no byte acknowledged for {self._policy.bulk_stall} s")
            peer.flush(now)
        self._heart = asyncio.get_running_loop().call_later(Liveness.period(self._policy), self._beat)
        self.perform(now)

    def _tick(self, peer: Peer, now: float) -> None:
        for act in peer.liveness.tick(now):
            match act:
                case Act.PING:
                    peer.ping()
                case Act.SUSPECT | Act.ALIVE:
                    self._log.info("peer suspect" if act is Act.SUSPECT else "peer alive", peer=peer.node)
                    self._core.on_suspect(now, peer.node, act is Act.SUSPECT)
                case Act.DROP_CONTROL if peer.control is not None:
                    peer.control.abort(f"silent for {self._policy.suspect_after} s")
                case Act.DROP_BULK:
                    for stream in list(peer.bulk.values()):
                        stream.abort(f"silent for {self._policy.suspect_after} s")
                case Act.LOST:
                    self._book.lose(peer, now, f"no connection for {self._policy.lease} s")

    def _arm(self, now: float) -> None:
        """Have the core's timer called when it wants."""
        deadline = None if self._closing else self._core.next_deadline()
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline is not None:
            delay = max(_LEAST_DELAY, deadline - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        now = self._clock()
        self._core.on_timer(now)
        self.perform(now)

    def _perform_soon(self) -> None:
        if not self._soon and not self._performing:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._perform_now)

    def _perform_now(self) -> None:
        self._soon = False
        self.perform(self._clock())


def _split(_: str, address: str) -> tuple[str, int]:
    """host:port apart."""
    host, _colon, port = address.rpartition(":")
    return host.strip("[]"), int(port)
