"""A node's place in the mesh: it listens, dials, and serves one core.

What the sockets say goes to the core with the time; what the core leaves in its outbox is performed at once
after. All of it happens in the loop's thread. No core is called from within its own call, but for
`chunk_written`, which may come while a chunk is being fetched for another connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import structlog

from shared.errors import ConfigError, Overflow
from shared.policy.config import LinePolicy, LinkPolicy
from shared.transport.book import Book
from shared.transport.codec_threads import CodecThreads
from shared.transport.compression import AS_IS, ChunkCodec
from shared.transport.connector import Connector
from shared.transport.dialling import Dialling, Target
from shared.transport.inbound import Inbound
from shared.transport.intake import Intake
from shared.transport.line import Line, LineSpec, LineView
from shared.transport.peer import Peer
from shared.transport.pulse import Pulse
from shared.transport.security import Tls, TlsFiles, check_key
from shared.wire.handshake import Identity
from shared.wire.port import BulkCore, ControlCore, Dial, Instruction, OutChunk, Send, Undial, WakeBulk

_LEAST_DELAY = 0.0005
"""Seconds until a core's timer at least, whatever it asks for."""


class Endpoint:
    """`lines` are the mesh's; those that touch this node's datacenter count. `route` turns (node,
    host:port) into the host and port to dial, for peers that the core names. `clock` gives monotonic
    seconds: the `now` of every call of the core. `encoding` is what chunks may be compressed to, on lines
    that say so; `codec` makes what does that, and reads the others' such chunks (None: neither is done).
    `counters` grow from the start. Raises ConfigError for a key or TLS files that cannot be used."""

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
        encoding: int = AS_IS,
        codec: Callable[[], ChunkCodec] | None = None,
    ) -> None:
        check_key(key)
        self.counters: Counter[str] = Counter()
        self._core = core
        self._bulk = cast(BulkCore, core) if hasattr(core, "next_chunk") else None
        line_policy = line_policy or LinePolicy()
        self._codec = CodecThreads(
            codec if self._bulk is not None else None, line_policy.codec_threads, self.counters
        )
        self.identity = replace(identity, encodings=self._codec.reads, max_chunk=policy.max_chunk)
        self._policy = policy
        self._clock = clock
        self._route = route or _split
        self._tls = Tls(tls) if tls is not None else None
        source = self if self._bulk is not None else None
        self._book = Book(
            self.identity,
            core,
            policy,
            line_policy,
            lines,
            source,
            clock,
            self.counters,
            self._perform_soon,
            self._codec,
            encoding,
        )
        self._intake = None
        if self._bulk is not None:
            self._intake = Intake(
                self._bulk, policy.max_chunk, self.counters, self._codec, clock, self._perform_soon
            )
        self._pulse = Pulse(core, self._book, policy, clock, self.counters, self.perform)
        self._inbound = Inbound(
            core,
            self._book,
            self._intake,
            self._pulse,
            policy,
            identity.role,
            clock,
            self.counters,
            self.perform,
        )
        self._connector = Connector(self.identity, key, self._tls, policy, self._book, self._inbound)
        self._servers: list[asyncio.Server] = []
        self._dials: dict[str, Dialling] = {}
        self._named: set[str] = set()  # those of them that the core asked for
        self._performing = False
        self._soon = False
        self._log = structlog.get_logger().bind(node=identity.node)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    # --- what a service calls ---

    def now(self) -> float:
        """The time, as the core is told it."""
        return self._clock()

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; the port (the one that was free, for port 0). Raises ConfigError where anyone
        could reach it without a key, OSError where the address cannot be had."""
        server = await self._connector.listen(host, port)
        self._pulse.start()
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    def dial(self, node: str, host: str, port: int, bulk: int = 0) -> None:
        """Keep a session to a node, with `bulk` bulk connections. A no-op where it is kept already; another
        address replaces the old one. `node` may be "" where only the address is known."""
        self._pulse.start()
        key = node or f"{host}:{port}"
        known = self._dials.get(key)
        if known is not None:
            if (known.target.host, known.target.port) == (host, port):
                return
            known.cancel()
        target = Target(node, host, port, bulk)
        self._dials[key] = dialling = Dialling(self._connector, target, self._policy)
        dialling.start()

    def undial(self, node: str) -> None:
        """Keep that session no longer; an open one stays until it breaks."""
        self._named.discard(node)
        dialling = self._dials.pop(node, None)
        if dialling is not None:
            dialling.cancel()

    def perform(self, now: float) -> None:
        """Do what the core's outbox asks for; call after every call into the core from outside."""
        if self._performing:
            self._perform_soon()
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

    def line_to(self, datacenter: str) -> LineView:
        """The line from here to a datacenter, whoever is there."""
        return self._book.line_to(datacenter).view(self._clock())

    def lines(self) -> dict[str, LineView]:
        """All lines used so far, by name."""
        return {name: line.view(self._clock()) for name, line in self._book.lines.items()}

    def oldest_part(self, line: str) -> float | None:
        """Part of a line's share that routers deal to this node's oldest transfers; None: they do not say."""
        known = self._book.lines.get(line)
        return known.shares.oldest(self._clock()) if known is not None else None

    def sessions(self) -> list[str]:
        """Nodes with a live session."""
        return list(self._book.peers)

    def reload_tls(self) -> None:
        """Take renewed certificate files for connections made from now on. Raises ConfigError."""
        if self._tls is not None:
            self._tls.reload()

    async def close(self, goodbye: str = "stopped") -> None:
        """Say goodbye to all peers, end all connections, listen no longer; returns when all are closed."""
        self._inbound.closing = True
        for server in self._servers:
            server.close()
        await asyncio.gather(*(dialling.stop() for dialling in self._dials.values()))
        now = self._clock()
        self.perform(now)
        for peer in list(self._book.peers.values()):
            peer.flush(now)
            peer.goodbye(goodbye)
            peer.recall()
        for stream in list(self._inbound.streams):
            stream.abort("endpoint closed")
        self._pulse.stop()
        if self._timer is not None:
            self._timer.cancel()
        for line in self._book.lines.values():
            line.close()
        while self._inbound.streams:
            await asyncio.wait([stream.closed for stream in self._inbound.streams])
        if self._intake is not None:
            await self._intake.settled()
        self._codec.close()

    # --- chunks on their way out (ChunkSource) ---

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        return self._bulk.next_chunk(now, node, limit) if self._bulk is not None else None

    def chunk_written(self, node: str, key: int, sent: bool) -> None:
        if self._bulk is not None:
            self._bulk.chunk_written(self._clock(), node, key, sent)
            if not sent:  # else it is told while its connection is given more, and all is performed then
                self._perform_soon()

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
                case Undial(node):
                    if node in self._named:
                        self.undial(node)
        for peer in written.values():
            peer.flush(now)
        for line in lines.values():
            line.turn(now)

    def _dial(self, wish: Dial) -> None:
        try:
            host, port = self._route(wish.node, wish.address)
        except ConfigError as error:
            self.counters["dials_refused"] += 1
            self._log.warning("cannot dial", peer=wish.node, address=wish.address, reason=str(error))
            return
        if wish.node not in self._dials:
            self._named.add(wish.node)
        self.dial(wish.node, host, port, self._book.bulk_connections(wish.role, wish.datacenter))

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

    # --- time ---

    def _arm(self, now: float) -> None:
        """Have the core's timer called when it wants."""
        deadline = None if self._inbound.closing else self._core.next_deadline()
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
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._perform_now)

    def _perform_now(self) -> None:
        self._soon = False
        self.perform(self._clock())


def _split(_: str, address: str) -> tuple[str, int]:
    """host:port apart. Raises ConfigError."""
    host, _colon, port = address.rpartition(":")
    if not port.isdigit():
        raise ConfigError("address", f"{address!r} is no host:port")
    return host.strip("[]"), int(port)
