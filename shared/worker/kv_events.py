"""Changes of the pool's published blocks, numbered, for the routers' indexes; and the whole of it on
request.
"""

from __future__ import annotations

from shared.kv.hashing import set_digest
from shared.wire.messages import KvEvents, Snapshot, SnapshotDigest
from shared.worker.worker_site import Site


class KvEventLog:
    """Numbers a pool's changes. Every router gets every number, so a gap shows that something was lost."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.seq = 0

    def tell(self, stored: list[bytes], removed: list[bytes], cleared: bool) -> None:
        """Send one change to all routers. Must be called with every change, in order."""
        self.seq += 1
        message = KvEvents(self.seq, len(stored), len(removed), cleared)
        payload = b"".join(stored) + b"".join(removed)
        for router in self._site.peers.routers():
            self._site.outbox.send(router, message, payload)

    def snapshot(self, router: str) -> None:
        """Send all published hashes, as after the last change told."""
        hashes = self._site.pool.hashes()
        self._site.outbox.send(router, Snapshot(self.seq, len(hashes)), b"".join(hashes))

    def digest(self, router: str) -> None:
        """Send their digest alone: for a router that compares what it knows."""
        hashes = self._site.pool.hashes()
        self._site.outbox.send(router, SnapshotDigest(self.seq, len(hashes), set_digest(hashes)))
