"""The Llama-family forward over the rows of one step: every sequence's new tokens, one under another.

Knows weights and arithmetic; which row belongs to which sequence, and where its KV lives, is known to the
attention that it is handed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from shared.engine.experts import ExpertMlp
from shared.engine.linear import Linear, working_dtype
from shared.engine.model_config import ModelConfig, read_config
from shared.engine.rope import Rotary, pair_rows, rotate_
from shared.engine.weights import Progress, Weights
from shared.errors import ModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Attend(Protocol):
    """Attention of one step's rows, and the keeping of their keys and values."""

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """From [rows, heads + 2 kv_heads, head_dim] (q, k rotated) to [rows, heads * head_dim]."""


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm over the last dimension, computed in float32."""

    weight: Tensor
    eps: float

    def __call__(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        wide = rows.float()
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True).add_(self.eps))
        return (wide * scale).to(dtype).mul_(self.weight)


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
    """Weights of one layer; rows of q and k (and their norms) have rotary pairs side by side."""

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

    def forward(self, ids: Tensor, turns: Tensor, attend: Attend) -> Tensor:
        """Hidden states, float32 [rows, hidden], of int64 [rows] ids whose rotations are `turns`."""
        config = self.config
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


def load_model(directory: Path, dtype: str, progress: Progress | None = None) -> LlamaModel:
    """Load a Hugging Face directory as "float32" or "bfloat16"; `progress(done, total)` counts tensors.

    Raises ModelError where the directory cannot be served, naming the key, tensor or file.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r}: served are {', '.join(DTYPES)}")
    config = read_config(directory)
    with Weights(directory, DTYPES[dtype], progress) as weights:
        model = _build(config, dtype, weights)
        _refuse_unread(config, directory, weights)
    return model


def _build(config: ModelConfig, dtype: str, weights: Weights) -> LlamaModel:
    embedding = weights.get("model.embed_tokens.weight", config.vocab, config.hidden)
    layers = [_layer(config, weights, f"model.layers.{number}") for number in range(config.layers)]
    norm = Norm(weights.get("model.norm.weight", config.hidden), config.eps)
    head = embedding if config.tied else weights.get("lm_head.weight", config.vocab, config.hidden)
    return LlamaModel(config, dtype, embedding, layers, norm, Linear(head))


def _layer(config: ModelConfig, weights: Weights, name: str) -> Layer:
    hidden, head_dim = config.hidden, config.head_dim
    queries = config.heads * head_dim
    norms = {
        which: _paired_norm(config, weights, f"{name}.self_attn.{which}_norm.weight") for which in ("q", "k")
    }
    bias = weights.get(f"{name}.self_attn.o_proj.bias", hidden) if config.output_bias else None
    return Layer(
        input_norm=Norm(weights.get(f"{name}.input_layernorm.weight", hidden), config.eps),
        qkv=_qkv(config, weights, f"{name}.self_attn"),
        q_norm=norms["q"],
        k_norm=norms["k"],
        output=Linear(weights.get(f"{name}.self_attn.o_proj.weight", hidden, queries), bias),
        mlp_norm=Norm(weights.get(f"{name}.post_attention_layernorm.weight", hidden), config.eps),
        mlp=_mlp(config, weights, f"{name}.mlp"),
    )


def _paired_norm(config: ModelConfig, weights: Weights, name: str) -> Norm | None:
    if not config.qk_norm:
        return None
    return Norm(pair_rows(weights.get(name, config.head_dim), config.head_dim), config.eps)


def _qkv(config: ModelConfig, weights: Weights, name: str) -> Linear:
    sizes = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    rows = {which: heads * config.head_dim for which, heads in sizes.items()}
    rotated = rows["q"] + rows["k"]

    def fused(kind: str, *rest: int) -> Tensor:
        whole = weights.stack([(f"{name}.{which}_proj.{kind}", rows[which]) for which in rows], *rest)
        whole[:rotated] = pair_rows(whole[:rotated], config.head_dim)
        return whole

    return Linear(fused("weight", config.hidden), fused("bias") if config.qkv_bias else None)


def _mlp(config: ModelConfig, weights: Weights, name: str) -> Mlp | ExpertMlp:
    if config.experts is not None:
        return ExpertMlp.load(config.hidden, config.experts, weights, name)
    hidden, ffn = config.hidden, config.ffn
    parts = [(f"{name}.gate_proj", ffn), (f"{name}.up_proj", ffn)]
    gate_up = weights.stack([(f"{part}.weight", rows) for part, rows in parts], hidden)
    down = weights.get(f"{name}.down_proj.weight", hidden, ffn)
    if not config.mlp_bias:
        return Mlp(Linear(gate_up), Linear(down))
    bias = weights.stack([(f"{part}.bias", rows) for part, rows in parts])
    return Mlp(Linear(gate_up, bias), Linear(down, weights.get(f"{name}.down_proj.bias", hidden)))


def _refuse_unread(config: ModelConfig, directory: Path, weights: Weights) -> None:
    """A tensor that nothing reads would change the numbers: the configuration contradicts the file."""
    harmless = (".rotary_emb.inv_freq",)
    left = [name for name in weights.unused() if not name.endswith(harmless)]
    if config.tied:
        left = [name for name in left if name != "lm_head.weight"]
    if left:
        shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        raise ModelError(f"{directory}: {config.architecture} with this config.json has no place for {shown}")
