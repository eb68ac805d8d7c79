"""Who is connected: sessions by node, which connection carries which, and how each begins and ends.

One session per node. A new connection of a live session fences the old one; a new incarnation, or another
session number, is at once the end of the old session. The core is told of each beginning and each end,
once. Knows no dialling, no listening and no bytes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from shared.errors import SessionOver
from shared.policy.compression import CompressionGauge
from shared.policy.config import LinePolicy, LinkPolicy
from shared.transport.ahead import Ahead
from shared.transport.codec_threads import CodecThreads
from shared.transport.compression import AS_IS
from shared.transport.line import Line, LineSpec
from shared.transport.peer import ChunkSource, Peer
from shared.transport.tcp import Stream
from shared.wire.handshake import Agreed, Identity, Offer
from shared.wire.messages import Hello, Role
from shared.wire.port import ControlCore

_CONTROL_UNSENT = 64 << 10
"""Bytes of control frames that may wait in the kernel, where nothing can pass them."""


class Book:
    """All sessions of one endpoint."""

    def __init__(
        self,
        identity: Identity,
        core: ControlCore,
        policy: LinkPolicy,
        line_policy: LinePolicy,
        lines: Sequence[LineSpec],
        source: ChunkSource | None,
        clock: Callable[[], float],
        counters: Counter[str],
        after_turn: Callable[[], None],
        codec: CodecThreads,
        encoding: int = AS_IS,
    ) -> None:
        """`encoding` is what this node's chunks may be sent in, beside as they are."""
        self.node = identity.node
        self.peers: dict[str, Peer] = {}
        self.lines: dict[str, Line] = {}
        self._identity = identity
        self._core = core
        self._policy = policy
        self._line_policy = line_policy
        self._specs = {frozenset(spec.between): spec for spec in lines}
        self._source = source
        self._clock = clock
        self._counters = counters
        self._after_turn = after_turn
        self._codec = codec
        self._encoding = encoding
        self._of: dict[Stream, Peer] = {}
        self.of: Callable[[Stream], Peer | None] = self._of.get
        """The peer whose session a connection carries."""
        self._random = random.SystemRandom()
        self._log = structlog.get_logger().bind(node=identity.node)

    def line_to(self, datacenter: str) -> Line:
        """The line from here to a datacenter."""
        between = frozenset((self._identity.datacenter, datacenter))
        spec = self._specs.get(between)
        name = spec.name if spec is not None else "-".join(sorted(between))
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = Line(
                name, spec, self._line_policy, self._policy, self._clock, self._after_turn
            )
        return line

    def bulk_connections(self, role: Role, datacenter: str) -> int:
        """How many to make to a node; a router has none."""
        if Role.ROUTER in (role, self._identity.role):
            return 0
        spec = self.line_to(datacenter).spec
        return (spec.bulk_connections if spec is not None else 0) or self._policy.bulk_connections

    def offer(self, hello: Hello) -> Offer | None:
        """The session for a Hello; None where a bulk connection names none that is live. Changes
        nothing."""
        peer = self.peers.get(hello.node)
        if (
            peer is not None
            and hello.session == peer.session.number
            and hello.incarnation == peer.info.incarnation
            and hello.peer_incarnation == self._identity.incarnation
        ):
            return Offer(peer.session.number, peer.session.last_seq)
        if hello.bulk:
            return None
        return Offer(self._random.randrange(1, 1 << 63), 0)

    def opened(self, stream: Stream, agreed: Agreed, now: float) -> bool:
        """A handshake is over. False: the connection is of no session here, and was closed."""
        peer = self.peers.get(agreed.peer.node)
        known = peer is not None and (peer.session.number, peer.info.incarnation) == (
            agreed.session,
            agreed.peer.incarnation,
        )
        if agreed.bulk:
            return self._opened_bulk(stream, agreed, peer if known else None, now)
        if peer is not None and not known:
            new = peer.info.incarnation != agreed.peer.incarnation
            self.lose(peer, now, "restarted" if new else "the peer has begun a new session")
            peer = None
        if peer is None:
            line = self.line_to(agreed.peer.datacenter)
            peer = self._make(agreed, line, now)
            self.peers[peer.node] = peer
        return self._carry(peer, stream, agreed, now, resumed=known)

    def lose(self, peer: Peer, now: float, reason: str) -> None:
        """A session has ended, once."""
        if self.peers.get(peer.node) is not peer:
            return
        del self.peers[peer.node]
        for stream in peer.streams():
            stream.abort(f"session over: {reason}")
        peer.leave()
        for line in self.lines.values():  # a router deals lines that it is not reached over
            line.shares.drop(peer.node)
        self._counters["sessions_lost"] += 1
        self._log.info("session lost", peer=peer.node, reason=reason, resent_bytes=peer.session.resent_bytes)
        self._core.on_lost(now, peer.node, reason)

    def ended(self, stream: Stream, now: float) -> Peer | None:
        """A connection is over; the peer that it carried, where it still counted."""
        peer = self._of.pop(stream, None)
        return peer if peer is not None and peer.drop(stream, now) else None

    def _make(self, agreed: Agreed, line: Line, now: float) -> Peer:
        mode = line.spec.compress if line.spec is not None else "off"
        ahead = None
        if mode != "off" and self._codec.reads & agreed.encodings & 1 << self._encoding:
            gauge = CompressionGauge(mode, self._codec.parallel)
            ahead = Ahead(self._codec, gauge, self._encoding, lambda: line.ready(peer))
        peer = Peer(
            agreed,
            self._policy,
            line,
            self._source,
            self._counters,
            now,
            ahead,
            lambda: self._codec.decodes,
        )
        return peer

    def _carry(self, peer: Peer, stream: Stream, agreed: Agreed, now: float, *, resumed: bool) -> bool:
        try:
            peer.session.reconnected(agreed.peer_last_seq)
        except SessionOver as over:
            stream.abort(str(over))
            self.lose(peer, now, str(over))
            return False
        stream.tune(unsent=_CONTROL_UNSENT, timeout=2 * self._policy.suspect_after)
        fenced = peer.carry(stream, now)
        self._of[stream] = peer
        if fenced is not None:
            self._of.pop(fenced, None)
            fenced.abort("fenced by a new connection")
        if not stream.dialled:
            peer.confirm(stream)
        self._counters["sessions_resumed" if resumed else "sessions_opened"] += 1
        self._log.info("session open", peer=peer.node, role=peer.info.role, resumed=resumed)
        if resumed:
            peer.recall()
            self._core.on_resumed(now, peer.node)
        else:
            self._core.on_session(now, peer.info)
        return True

    def _opened_bulk(self, stream: Stream, agreed: Agreed, peer: Peer | None, now: float) -> bool:
        if peer is None or self._source is None:
            stream.abort("bulk connection of no session")
            return False
        index = agreed.bulk if stream.dialled else -agreed.bulk  # both sides may dial
        fenced = peer.add_bulk(index, stream)
        self._of[stream] = peer
        if fenced is not None:
            self._of.pop(fenced, None)
            fenced.abort("fenced by a new connection")
        if not stream.dialled:
            peer.confirm(stream)
        self._tune_bulk(stream, peer)
        stream.read_directly()
        if index in peer.had_bulk:
            self._counters["bulk_reconnects"] += 1
            peer.recall()
            self._core.on_resumed(now, peer.node)
        peer.had_bulk.add(index)
        peer.line.wake(peer)
        peer.line.turn(now)
        return True

    def _tune_bulk(self, stream: Stream, peer: Peer) -> None:
        spec = peer.line.spec
        timeout = self._policy.bulk_stall + self._policy.suspect_after
        if spec is None:
            stream.tune(timeout=timeout, congestion=self._policy.lan_congestion)
            return
        unsent = peer.line.chunk_limit()
        pace = int(spec.rate * 1.25)
        stream.tune(unsent=unsent, congestion=spec.congestion, dscp=spec.dscp, pace=pace, timeout=timeout)
