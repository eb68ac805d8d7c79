"""The Llama-family forward in compiled code: one call for all layers of a step.

Weights, keys and values are bfloat16 or float32, all between them float32. On a matrix unit what is
multiplied with them is rounded to bfloat16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.checkpoint import Checkpoint, DenseTensors, LayerTensors
from shared.engine.contexts import Part
from shared.engine.model_config import ModelConfig
from shared.engine.native import library as native
from shared.engine.native.library import Library
from shared.engine.native.panels import Panels
from shared.engine.rope import Rotary, Turns

MOST_HEAD = 256  # of head_dim (`attention.h`)
MOST_GROUP = 96  # query heads per KV head
_EVERYTHING = 1 << 62
_ROW_GAP = 32  # floats that `padded` in `model.h` adds to a row at most
_BLOCK_ROWS = 32  # rows are multiplied in blocks of so many at most


def computes(config: ModelConfig) -> bool:
    """Whether a model can be computed here."""
    return (
        config.experts is None
        and config.head_dim <= MOST_HEAD
        and config.head_dim % 2 == 0
        and config.group <= MOST_GROUP
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; norms in float32."""

    input_norm: Tensor
    qkv: Panels
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Panels
    mlp_norm: Tensor
    gate_up: Panels
    down: Panels

    @classmethod
    def of(cls, tensors: LayerTensors, lanes: int) -> Layer:
        mlp = tensors.mlp
        assert isinstance(mlp, DenseTensors)
        return cls(
            tensors.input_norm.float(),
            Panels.of(tensors.qkv, tensors.qkv_bias, lanes),
            None if tensors.q_norm is None else tensors.q_norm.float(),
            None if tensors.k_norm is None else tensors.k_norm.float(),
            Panels.of(tensors.output, tensors.output_bias, lanes),
            tensors.mlp_norm.float(),
            Panels.gated(mlp.gate_up, mlp.gate_up_bias, lanes),
            Panels.of(mlp.down, mlp.down_bias, lanes),
        )

    def address(self, window: int | None) -> native.Layer:
        return native.Layer(
            self.input_norm.data_ptr(),
            self.qkv.address(),
            None if self.q_norm is None else self.q_norm.data_ptr(),
            None if self.k_norm is None else self.k_norm.data_ptr(),
            self.output.address(),
            self.mlp_norm.data_ptr(),
            self.gate_up.address(),
            self.down.address(),
            _EVERYTHING if window is None else window,
        )


class NativeModel:
    """One loaded model. A step's threads are torch's in the thread that calls.

    Its methods only read it, so several runners may share one.
    """

    def __init__(self, config: ModelConfig, dtype: str, checkpoint: Checkpoint, library: Library) -> None:
        self.config = config
        self.dtype = dtype
        self._library = library
        self.embedding = checkpoint.embedding()
        self._layers = [Layer.of(tensors, library.lanes) for tensors in checkpoint.layers()]
        self._norm = checkpoint.norm().float()
        head = checkpoint.head()
        self._head = Panels.of(self.embedding if head is None else head, None, library.lanes)
        windows = config.windows or (None,) * config.layers
        self._head_address = self._head.address()
        addresses = [layer.address(window) for layer, window in zip(self._layers, windows, strict=True)]
        self._addresses = (native.Layer * config.layers)(*addresses)
        narrow = self.embedding.dtype == torch.bfloat16
        self._model = native.Model(
            ctypes.addressof(self._addresses),
            config.layers,
            config.hidden,
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.ffn,
            config.eps,
            narrow,
            narrow and library.matrix_unit,
        )

    def forward(self, ids: Tensor, turns: Turns, parts: Sequence[Part]) -> Tensor:
        """Hidden states, float32 [rows, hidden], of int64 [rows] ids whose rotations are `turns`.

        `parts` in the order of their rows; their new keys and values are written behind what they hold.
        """
        hidden = self.embedding[ids].float()
        item = self.embedding.itemsize
        addresses, row = [], 0
        for part in parts:
            kv = part.context.arena.kv
            layer, half, lane, head = kv.stride()[:4]
            keys = kv.data_ptr() + part.context.lane * lane * item
            addresses.append(native.Part(keys, half, layer, head, row, part.new, part.context.length))
            row += part.new
        table = (native.Part * len(addresses))(*addresses)
        step = native.Step(
            ctypes.addressof(table),
            len(addresses),
            len(ids),
            hidden.data_ptr(),
            turns.cos.data_ptr(),
            turns.sin.data_ptr(),
            torch.get_num_threads(),
        )
        model, step_address = ctypes.byref(self._model), ctypes.byref(step)
        room = torch.empty(self._library.room(model, step_address))  # torch gives multiples of 64 bytes
        self._library.extend(model, step_address, room.data_ptr())
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores, float32 [rows, vocab], of hidden states [rows, hidden]."""
        states = hidden.contiguous()
        rows, depth = states.shape
        scores = torch.empty(rows, self.config.vocab)
        room = torch.empty((rows + _BLOCK_ROWS) * (depth + _ROW_GAP))
        self._library.scores(
            ctypes.byref(self._model),
            ctypes.byref(self._head_address),
            self._norm.data_ptr(),
            states.data_ptr(),
            rows,
            scores.data_ptr(),
            room.data_ptr(),
            torch.get_num_threads(),
        )
        return scores

    def rotary(self) -> Rotary:
        """A table of rotations of this model's own (it grows as it is used, so it is not shared)."""
        return Rotary(self.config.rope, self.config.head_dim)
