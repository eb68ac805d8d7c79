"""Relay decode (RLD): answers beside prefill while main decode's KV is on the line. Disposable."""

from __future__ import annotations

from shared.runtime.settings import MeshConfig, NodeConfig
from shared.worker.process import WorkerProcess


def make(mesh: MeshConfig, node: NodeConfig) -> WorkerProcess:
    """The service of one relay node."""
    return WorkerProcess(mesh, node)
