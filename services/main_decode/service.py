"""Main decode (MD): keeps the KV of past turns, takes over by token ids, finishes nearly every request."""

from __future__ import annotations

from shared.runtime.settings import MeshConfig, NodeConfig
from shared.worker.process import WorkerProcess


def make(mesh: MeshConfig, node: NodeConfig) -> WorkerProcess:
    """The service of one main decode node."""
    return WorkerProcess(mesh, node)
