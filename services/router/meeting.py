"""Introduces the workers of a pool to one another: each is told whom the router knows, so that the ones that
joined later are dialled. Those of another pool never hear of them.
"""

from __future__ import annotations

from services.router.fleet import Fleet
from services.router.mesh import Mesh
from services.router.worker import PoolKey
from shared.wire.messages import Peers


class Meeting:
    """Tells every worker once of each change."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._told: dict[str, Peers] = {}  # by worker

    def changed(self) -> None:
        """A worker has joined, left, or has another address."""
        messages: dict[PoolKey, Peers] = {}
        for worker in self._mesh.fleet.all():
            pool = worker.pool
            if pool is None:
                continue
            message = messages.get(pool)
            if message is None:
                message = messages[pool] = _peers(self._mesh.fleet, pool)
            if message.nodes and self._told.get(worker.node) != message:
                self._told[worker.node] = message
                self._mesh.send(worker.node, message)

    def left(self, node: str) -> None:
        """A worker's session has ended: the next one begins anew."""
        self._told.pop(node, None)


def _peers(fleet: Fleet, pool: PoolKey) -> Peers:
    known = [
        worker
        for worker in fleet.all()
        if worker.pool == pool and worker.announce is not None and worker.announce.kv_address
    ]
    return Peers(
        tuple(
            (worker.node, worker.role, worker.peer.datacenter, worker.announce.kv_address)
            for worker in sorted(known, key=lambda one: one.node)
            if worker.announce is not None
        )
    )
