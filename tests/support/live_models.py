"""What a live mesh serves: a model's directory, and how each worker gets its runner over shared weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from shared.engine.cpu_model import CpuModel
from shared.engine.fingerprint import Fingerprint
from shared.engine.runner import TorchRunner
from shared.runtime.settings import MeshConfig, ModelConfig, NodeConfig
from shared.worker.parts import Built, build


class Model(Protocol):
    """A model for `live_mesh`."""

    vocab: int

    def config(self) -> ModelConfig:
        """[model] of the mesh."""

    def load(self, mesh: MeshConfig, node: NodeConfig) -> Built:
        """One worker's runner."""


class SyntheticModel:
    """The timing model; `directory` only has to hold a tokenizer."""

    def __init__(self, directory: Path, block_tokens: int = 4, name: str = "synthetic") -> None:
        self.directory = directory
        self.vocab = int(json.loads((directory / "config.json").read_text())["vocab_size"])
        self._config = ModelConfig(
            path=str(directory), name=name, engine="synthetic", block_tokens=block_tokens
        )

    def config(self) -> ModelConfig:
        return self._config

    def load(self, mesh: MeshConfig, node: NodeConfig) -> Built:
        return build(mesh, node)


class SharedModel:
    """One loaded model for all workers of the process, in its dtype."""

    def __init__(
        self, directory: Path, model: CpuModel, prints: Fingerprint, block_tokens: int, max_context: int = 0
    ) -> None:
        self.vocab = model.config.vocab
        self._model = model
        self._prints = prints
        self._config = ModelConfig(
            path=str(directory),
            name="tested",
            dtype="bfloat16" if model.dtype == "bfloat16" else "float32",
            block_tokens=block_tokens,
            max_context=max_context,
        )

    def config(self) -> ModelConfig:
        return self._config

    def load(self, mesh: MeshConfig, node: NodeConfig) -> Built:
        runner = TorchRunner(
            self._model, kv_blocks=node.pool_blocks, block_tokens=mesh.model_of(node).block_tokens, threads=1
        )
        return Built(runner, self._prints, mesh.model_of(node).max_context or runner.max_context)
