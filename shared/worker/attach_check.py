"""Whether an Attach may be followed: its target is who it was, both ends mean the same chain of blocks."""

from __future__ import annotations

from shared.kv.hashing import HASH_BYTES
from shared.wire.messages import Attach
from shared.worker.sources import Source
from shared.worker.worker_site import Site


class AttachCheck:
    """Compares before the first byte is sent (a restarted receiver, or another chain, gets none)."""

    def __init__(self, site: Site, source: Source) -> None:
        self._site = site
        self._source = source

    def chain(self, attach: Attach, payload: bytes) -> list[bytes] | None:
        """The hashes of blocks [0, upto); None, and counted, where something does not fit."""
        peer = self._site.peers.get(attach.target)
        if peer is not None and peer.incarnation != attach.incarnation:
            self._site.count("attach_stale_total")
            return None
        if payload:
            hashes = [payload[at : at + HASH_BYTES] for at in range(0, len(payload), HASH_BYTES)]
        else:
            hashes = self._source.hashes(attach.rid)
        if len(hashes) < attach.upto:
            self._site.count("attach_unknown_total")
            return None
        hashes = hashes[: attach.upto]
        if hashes and hashes[-1] != attach.last_hash:
            self._site.count("attach_chain_mismatch_total")
            return None
        return hashes
