"""Prefill (P): computes prompts, draws one id, then only sends KV to relay and main decode."""

from __future__ import annotations

from shared.runtime.settings import MeshConfig, NodeConfig
from shared.worker.process import WorkerProcess


def make(mesh: MeshConfig, node: NodeConfig) -> WorkerProcess:
    """The service of one prefill node."""
    return WorkerProcess(mesh, node)
