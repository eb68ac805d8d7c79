"""What a CPU's runner computes with: the forward in compiled code where there is some, else torch's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from shared.engine import model
from shared.engine.checkpoint import Checkpoint
from shared.engine.contexts import Part
from shared.engine.model_config import ModelConfig, read_config
from shared.engine.native.library import Library
from shared.engine.native.model import NativeModel, computes
from shared.engine.rope import Rotary, Turns
from shared.engine.weights import Progress, Weights
from shared.errors import ModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CpuModel(Protocol):
    """One loaded model. Its methods only read it, so several runners may share one."""

    config: ModelConfig
    dtype: str
    embedding: Tensor

    def forward(self, ids: Tensor, turns: Turns, parts: Sequence[Part]) -> Tensor:
        """Hidden states, float32 [rows, hidden], of int64 [rows] ids whose rotations are `turns`.

        `parts` in the order of their rows; their new keys and values are written behind what they hold.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores, float32 [rows, vocab], of hidden states [rows, hidden]."""

    def rotary(self) -> Rotary:
        """A table of rotations of this model's own (it grows as it is used, so it is not shared)."""


def load_model(
    directory: Path,
    dtype: str,
    progress: Progress | None = None,
    library: Library | None = None,
    *,
    matrix_unit: bool = False,
) -> CpuModel:
    """Load a Hugging Face directory as "float32" or "bfloat16"; `progress(done, total)` counts tensors.

    `library`: compiled code to compute with, as far as it knows the model. `matrix_unit`: torch has
    one (AMX); bfloat16 is computed there unless the library uses it as well. Raises ModelError where the
    directory cannot be served, naming the key, tensor or file.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r}: served are {', '.join(DTYPES)}")
    config = read_config(directory)
    with Weights(directory, DTYPES[dtype], progress) as weights:
        checkpoint = Checkpoint(config, weights)
        loaded: CpuModel
        slower = matrix_unit and dtype == "bfloat16" and library is not None and not library.matrix_unit
        if library is not None and computes(config) and not slower:
            loaded = NativeModel(config, dtype, checkpoint, library)
        else:
            loaded = model.build(config, dtype, checkpoint)
        checkpoint.refuse_unread(directory)
    return loaded
