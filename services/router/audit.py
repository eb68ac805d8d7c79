"""Compares what the index knows of each worker's cache with what the worker itself says. It answers with a
digest; where that is not ours, all its hashes are asked for, counted, and taken for the truth.

The index goes by events in order: a difference is a fault, here or there. Knows no requests and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.router.mesh import Mesh
from services.router.mirror import split
from shared.wire.messages import Snapshot, SnapshotDigest, SnapshotRequest


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one worker. All are numbers of blocks."""

    node: str
    answered: bool
    held: int = 0
    """By the worker's word."""
    known: int = 0
    """To the index, before it was put right."""
    missing: int = 0
    """Held and not known."""
    extra: int = 0
    """Known and not held."""

    @property
    def equal(self) -> bool:
        return self.answered and not self.missing and not self.extra


class Audit:
    """One comparison at a time. `begin`, then each worker's answers, until nothing is `open` any more."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._waiting: set[str] = set()
        self._found: dict[str, Finding] = {}

    @property
    def open(self) -> bool:
        """Whether workers have still to answer."""
        return bool(self._waiting)

    def begin(self) -> None:
        """Ask all workers; whoever asks meanwhile has part in the same comparison."""
        if self._waiting:
            return
        self._found = {}
        for worker in self._mesh.fleet.all():
            self._waiting.add(worker.node)
            self._mesh.send(worker.node, SnapshotRequest(digest=True))

    def end(self) -> list[Finding]:
        """What was found, by node; who has not answered yet is not waited for any more."""
        for node in self._waiting:
            self._found[node] = Finding(node, answered=False)
        self._waiting.clear()
        return [self._found[node] for node in sorted(self._found)]

    def on_digest(self, node: str, said: SnapshotDigest) -> None:
        """A worker's first answer: all is well, or its hashes are wanted."""
        if node not in self._waiting:
            return
        if self._mesh.index.agrees(node, said):
            self._settle(Finding(node, answered=True, held=said.count, known=said.count))
        elif self._mesh.index.mistrust(node):
            self._mesh.send(node, SnapshotRequest())

    def on_snapshot(self, node: str, snapshot: Snapshot, payload: bytes) -> None:
        """All hashes of a worker, before the index takes them for the truth. One of protocol version 1 sends
        them at once."""
        if node not in self._waiting:
            return
        known, held = self._mesh.index.hashes(node), set(split(payload))
        missing, extra = len(held - known), len(known - held)
        self._settle(Finding(node, True, snapshot.count, len(known), missing, extra))

    def left(self, node: str) -> None:
        """A worker is gone."""
        if node in self._waiting:
            self._settle(Finding(node, answered=False))

    def _settle(self, found: Finding) -> None:
        self._waiting.discard(found.node)
        self._found[found.node] = found
        self._mesh.count("index_compared_total", found.answered)
        self._mesh.count("index_wrong_blocks_total", found.missing + found.extra)
