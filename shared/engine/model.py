"""The Llama-family forward over the rows of one step: every sequence's new tokens, one under another.

Knows weights and arithmetic; which row belongs to which sequence, and where its KV lives, is `attention`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shared.engine.attention import StepAttention
from shared.engine.checkpoint import Checkpoint, DenseTensors, ExpertTensors, LayerTensors
from shared.engine.contexts import Part
from shared.engine.experts import ExpertMlp
from shared.engine.linear import Linear, working_dtype
from shared.engine.model_config import ModelConfig
from shared.engine.rope import Rotary, Turns, rotate_


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm over the last dimension, computed in float32."""

    weight: Tensor
    eps: Tensor

    @classmethod
    def of(cls, weight: Tensor, eps: float) -> Norm:
        return cls(weight, torch.tensor([eps], dtype=torch.float32))

    def __call__(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        wide = rows.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.eps, length, length, value=1 / wide.shape[-1]).rsqrt_()
        normed = torch.empty(wide.shape, dtype=dtype)
        return torch.mul(wide, scale, out=normed).mul_(self.weight)


@dataclass(frozen=True, slots=True)
class Mlp:
    """silu(gate) * up, gate and up being one fused product."""

    gate_up: Linear
    down: Linear

    def __call__(self, rows: Tensor) -> Tensor:
        gate, up = self.gate_up(rows).chunk(2, -1)
        return self.down(F.silu(gate).mul_(up))


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer."""

    input_norm: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    output: Linear
    mlp_norm: Norm
    mlp: Mlp | ExpertMlp


class LlamaModel:
    """One loaded model. Its methods only read it, so several runners may share one."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: str,
        embedding: Tensor,
        layers: list[Layer],
        norm: Norm,
        head: Linear,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.head = head

    def forward(self, ids: Tensor, turns: Turns, parts: Sequence[Part]) -> Tensor:
        """Hidden states, float32 [rows, hidden], of int64 [rows] ids whose rotations are `turns`.

        `parts` in the order of their rows; their new keys and values are written behind what they hold.
        """
        config = self.config
        attend = StepAttention(parts, config.heads, config.windows)
        rows, heads, kv_heads = len(ids), config.heads, config.kv_heads
        hidden = self.embedding[ids].float()
        dtype = working_dtype(rows, self.embedding.dtype)
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(layer.input_norm(hidden, dtype)).view(rows, heads + 2 * kv_heads, config.head_dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                qkv[:, :heads] = layer.q_norm(qkv[:, :heads], dtype)
                qkv[:, heads : heads + kv_heads] = layer.k_norm(qkv[:, heads : heads + kv_heads], dtype)
            rotate_(qkv[:, : heads + kv_heads], turns)
            hidden += layer.output(attend(number, qkv))
            hidden += layer.mlp(layer.mlp_norm(hidden, dtype))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores, float32 [rows, vocab], of hidden states [rows, hidden]."""
        return self.head(self.norm(hidden, self.embedding.dtype)).float()

    def rotary(self) -> Rotary:
        """A table of rotations of this model's own (it grows as it is used, so it is not shared)."""
        return Rotary(self.config.rope, self.config.head_dim)


def build(config: ModelConfig, dtype: str, checkpoint: Checkpoint) -> LlamaModel:
    """The model of a checkpoint, its weights in the order that torch's products like."""
    embedding = checkpoint.embedding()
    layers = [_layer(config, tensors) for tensors in checkpoint.layers()]
    norm = Norm.of(checkpoint.norm(), config.eps)
    head = checkpoint.head()
    return LlamaModel(config, dtype, embedding, layers, norm, Linear(embedding if head is None else head))


def _layer(config: ModelConfig, tensors: LayerTensors) -> Layer:
    return Layer(
        input_norm=Norm.of(tensors.input_norm, config.eps),
        qkv=Linear(tensors.qkv, tensors.qkv_bias),
        q_norm=_head_norm(config, tensors.q_norm),
        k_norm=_head_norm(config, tensors.k_norm),
        output=Linear(tensors.output, tensors.output_bias),
        mlp_norm=Norm.of(tensors.mlp_norm, config.eps),
        mlp=_mlp(tensors.mlp),
    )


def _head_norm(config: ModelConfig, weight: Tensor | None) -> Norm | None:
    return None if weight is None else Norm.of(weight, config.eps)


def _mlp(tensors: DenseTensors | ExpertTensors) -> Mlp | ExpertMlp:
    if isinstance(tensors, ExpertTensors):
        return ExpertMlp(
            tensors.shape,
            Linear(tensors.router),
            [Linear(each) for each in tensors.gate_up],
            [Linear(each) for each in tensors.down],
        )
    return Mlp(Linear(tensors.gate_up, tensors.gate_up_bias), Linear(tensors.down, tensors.down_bias))
