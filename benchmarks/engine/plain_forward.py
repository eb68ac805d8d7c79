"""The baseline: a Llama forward as one would first write it in torch, contiguous caches, one batch.

It shares no code with the engine. Caches are allocated whole; attention is torch's fused kernel.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F


class PlainForward:
    """One model and one batch of equally long contexts."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        config = json.loads((directory / "config.json").read_text())
        self.weights = {
            name: tensor.to(dtype)
            for path in sorted(directory.glob("*.safetensors"))
            for name, tensor in load_file(path).items()
        }
        self.dtype = dtype
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config["head_dim"]
        self.eps: float = config["rms_norm_eps"]
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        angles = torch.arange(8192)[:, None].float() / config["rope_theta"] ** exponents
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.length = 0

    def reset(self, batch: int, capacity: int) -> None:
        """Empty caches for `batch` contexts of up to `capacity` tokens."""
        shape = (self.layers, 2, batch, self.kv_heads, capacity, self.head_dim)
        self.cache = torch.zeros(shape, dtype=self.dtype)
        self.length = 0

    @torch.inference_mode()
    def forward(self, ids: Tensor) -> Tensor:
        """Append int64 [batch, n] ids; the next ids [batch]."""
        count = ids.shape[1]
        hidden = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{name}.input_layernorm")
            hidden = hidden + self._attention(layer, f"{name}.self_attn", normed)
            normed = self._norm(hidden, f"{name}.post_attention_layernorm")
            gate, up = (self._project(normed, f"{name}.mlp.{part}_proj") for part in ("gate", "up"))
            hidden = hidden + self._project(F.silu(gate) * up, f"{name}.mlp.down_proj")
        self.length += count
        last = self._norm(hidden[:, -1], "model.norm")
        return F.linear(last, self.weights["model.embed_tokens.weight"]).argmax(-1)

    def _project(self, rows: Tensor, name: str) -> Tensor:
        return F.linear(rows, self.weights[f"{name}.weight"])

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        return F.rms_norm(rows, rows.shape[-1:], self.weights[f"{name}.weight"], self.eps)

    def _rotated(self, states: Tensor) -> Tensor:
        count = states.shape[2]
        cos, sin = (table[self.length : self.length + count] for table in (self.cos, self.sin))
        low, high = states.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def _attention(self, layer: int, name: str, rows: Tensor) -> Tensor:
        batch, count, _ = rows.shape
        start, end = self.length, self.length + count
        query, key, value = (
            self._project(rows, f"{name}.{part}_proj").view(batch, count, -1, self.head_dim).transpose(1, 2)
            for part in "qkv"
        )
        keys, values = self.cache[layer]
        keys[:, :, start:end] = self._rotated(key)
        values[:, :, start:end] = value
        query = self._rotated(query)
        mask = None
        if start and count > 1:
            mask = torch.ones(count, end, dtype=torch.bool).tril(start)
        mixed = F.scaled_dot_product_attention(
            query,
            keys[:, :, :end],
            values[:, :, :end],
            attn_mask=mask,
            is_causal=not start and count > 1,
            enable_gqa=True,
        )
        return self._project(mixed.transpose(1, 2).flatten(2), f"{name}.o_proj")
