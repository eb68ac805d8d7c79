"""The endpoint's heartbeat: pings, suspicion, silent and stalled connections, the end of leases."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog

from shared.policy.config import LinkPolicy
from shared.transport.book import Book
from shared.transport.peer import Peer
from shared.wire.liveness import Act, Liveness
from shared.wire.port import ControlCore


class Pulse:
    """Beats for all peers of one endpoint. `perform` does what the core then asks for."""

    def __init__(
        self,
        core: ControlCore,
        book: Book,
        policy: LinkPolicy,
        clock: Callable[[], float],
        counters: Counter[str],
        perform: Callable[[float], None],
    ) -> None:
        self._core = core
        self._book = book
        self._policy = policy
        self._clock = clock
        self._counters = counters
        self._perform = perform
        self._timer: asyncio.TimerHandle | None = None
        self._log = structlog.get_logger().bind(node=book.node)

    def start(self) -> None:
        """Begin to beat; a no-op where it does."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(Liveness.period(self._policy), self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def tick(self, peer: Peer, now: float) -> None:
        """What is due for one peer."""
        silent = f"silent for {self._policy.suspect_after} s"
        for act in peer.liveness.tick(now):
            match act:
                case Act.PING:
                    peer.ping()
                case Act.SUSPECT | Act.ALIVE:
                    suspect = act is Act.SUSPECT
                    self._log.info("peer suspicion", peer=peer.node, suspect=suspect)
                    self._core.on_suspect(now, peer.node, suspect)
                case Act.DROP_CONTROL:
                    if peer.control is not None:
                        peer.control.abort(silent)
                case Act.DROP_BULK:
                    for stream in list(peer.bulk.values()):
                        stream.abort(silent)
                case Act.LOST:
                    self._book.lose(peer, now, f"no connection for {self._policy.lease} s")

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(Liveness.period(self._policy), self._beat)
        now = self._clock()
        for peer in list(self._book.peers.values()):
            self.tick(peer, now)
            for stream in peer.stalled(now):
                self._counters["bulk_stalls"] += 1
                stream.abort(f"no byte acknowledged for {self._policy.bulk_stall} s")
            peer.flush(now)
        self._perform(now)
