"""Who has a session with this worker now. Knows roles and incarnations, nothing of requests."""

from __future__ import annotations

from collections.abc import Sequence

from shared.wire.messages import Role
from shared.wire.port import PeerInfo


class Peers:
    """Live sessions by node name."""

    def __init__(self) -> None:
        self._live: dict[str, PeerInfo] = {}
        self._suspect: set[str] = set()
        self._routers: list[str] = []

    def opened(self, peer: PeerInfo) -> None:
        self._live[peer.node] = peer
        self._suspect.discard(peer.node)
        self._count()

    def lost(self, node: str) -> PeerInfo | None:
        """Forget a session; who it was, None where there was none."""
        self._suspect.discard(node)
        gone = self._live.pop(node, None)
        self._count()
        return gone

    def _count(self) -> None:
        self._routers = [node for node, peer in self._live.items() if peer.role is Role.ROUTER]

    def suspected(self, node: str, suspect: bool) -> None:
        if suspect and node in self._live:
            self._suspect.add(node)
        else:
            self._suspect.discard(node)

    def is_suspect(self, node: str) -> bool:
        return node in self._suspect

    def get(self, node: str) -> PeerInfo | None:
        return self._live.get(node)

    def role(self, node: str) -> Role | None:
        peer = self._live.get(node)
        return None if peer is None else peer.role

    def owner(self, incarnation: int) -> str | None:
        """The router of that incarnation: only it decides about its requests."""
        for node, peer in self._live.items():
            if peer.role is Role.ROUTER and peer.incarnation == incarnation:
                return node
        return None

    def routers(self) -> Sequence[str]:
        """Nodes of routers, the first to come first. Asked for after every event: kept, not looked for."""
        return self._routers

    def workers(self) -> list[str]:
        """Nodes that KV can be sent to or come from."""
        return [node for node, peer in self._live.items() if peer.role is not Role.ROUTER]
