"""The reference: a Llama-family forward in one process, contiguous, float32, as plain as it can be written.

It shares no code with the engine and must never do so: it is what the engine's tokens are compared with. It
knows no blocks, no batches and no sampling (`tests.support.replay` draws from its logits).
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

CHUNK = 512  # rows of one attention score matrix at most, so that long prompts need little memory


class Reference:
    """Weights and configuration of one model; `logits` for a whole text, `context` to go on step by step."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """`config` as in config.json, `tensors` under their Hugging Face names, of any dtype."""
        if config.get("rope_scaling"):
            raise ValueError(f"rope_scaling {config['rope_scaling']!r} is not part of the reference")
        self.config = config
        self.weights = {name: tensor.float() for name, tensor in tensors.items()}
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config.get("num_key_value_heads") or self.heads
        self.head_dim: int = config.get("head_dim") or config["hidden_size"] // self.heads
        self.layers: int = config["num_hidden_layers"]
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        self.frequencies = 1.0 / config.get("rope_theta", 10000.0) ** exponents

    @classmethod
    def load(cls, directory: Path) -> "Reference":
        """Read a Hugging Face directory: config.json and every *.safetensors file in it."""
        tensors: dict[str, Tensor] = {}
        for path in sorted(directory.glob("*.safetensors")):
            tensors |= load_file(path)
        return cls(json.loads((directory / "config.json").read_text()), tensors)

    def context(self) -> "Context":
        """An empty context."""
        return Context(self)

    def logits(self, ids: list[int]) -> Tensor:
        """Logits after each of `ids`, from nothing: float32 of shape (len(ids), vocab)."""
        return self.context().forward(ids)

    def project(self, hidden: Tensor, name: str) -> Tensor:
        """hidden @ weight.T, plus the bias where the model has one."""
        product = hidden @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return product if bias is None else product + bias

    def norm(self, hidden: Tensor, name: str) -> Tensor:
        """RMS norm over the last dimension."""
        mean = hidden.pow(2).mean(-1, keepdim=True)
        return hidden * torch.rsqrt(mean + self.config["rms_norm_eps"]) * self.weights[f"{name}.weight"]

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits of final hidden states; the embedding serves where the two are tied."""
        tied = self.config.get("tie_word_embeddings", False)
        return hidden @ self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"].T


class Context:
    """The ids seen so far as keys and values, one pair of (kv_heads, n, head_dim) tensors a layer."""

    def __init__(self, model: Reference) -> None:
        self.model = model
        self.length = 0
        empty = torch.empty(model.kv_heads, 0, model.head_dim)
        self.cache = [(empty, empty)] * model.layers

    @torch.inference_mode()
    def forward(self, ids: list[int], last: int | None = None) -> Tensor:
        """Append `ids`; logits after each of them, or of the last `last`: float32 (n, vocab)."""
        parts = [self._hidden(ids[at : at + CHUNK]) for at in range(0, len(ids), CHUNK)]
        hidden = torch.cat(parts)[0 if last is None else -last :]
        return self.model.unembed(self.model.norm(hidden, "model.norm"))

    def _hidden(self, ids: list[int]) -> Tensor:
        model = self.model
        positions = torch.arange(self.length, self.length + len(ids))
        hidden = model.weights["model.embed_tokens.weight"][torch.tensor(ids)]
        for layer in range(model.layers):
            name = f"model.layers.{layer}"
            normed = model.norm(hidden, f"{name}.input_layernorm")
            hidden = hidden + self._attention(layer, f"{name}.self_attn", normed, positions)
            normed = model.norm(hidden, f"{name}.post_attention_layernorm")
            gate = torch.nn.functional.silu(model.project(normed, f"{name}.mlp.gate_proj"))
            up = model.project(normed, f"{name}.mlp.up_proj")
            hidden = hidden + model.project(gate * up, f"{name}.mlp.down_proj")
        self.length += len(ids)
        return hidden

    def _attention(self, layer: int, name: str, hidden: Tensor, positions: Tensor) -> Tensor:
        model = self.model
        rows, shape = len(hidden), (model.kv_heads, -1, len(hidden), model.head_dim)
        query = self._rotated(hidden, name, "q", model.heads, positions).reshape(shape)  # groups of heads
        new_key = self._rotated(hidden, name, "k", model.kv_heads, positions)
        new_value = model.project(hidden, f"{name}.v_proj").view(rows, model.kv_heads, -1).transpose(0, 1)
        key = torch.cat([self.cache[layer][0], new_key], 1)
        value = torch.cat([self.cache[layer][1], new_value], 1)
        self.cache[layer] = (key, value)
        scores = query @ key.unsqueeze(1).transpose(-1, -2) / model.head_dim**0.5
        unseen = torch.arange(key.shape[1]) > positions[:, None]
        mixed = scores.masked_fill(unseen, float("-inf")).softmax(-1) @ value.unsqueeze(1)
        return model.project(mixed.flatten(0, 1).transpose(0, 1).flatten(1), f"{name}.o_proj")

    def _rotated(self, hidden: Tensor, name: str, which: str, heads: int, positions: Tensor) -> Tensor:
        """Queries or keys as (heads, n, head_dim), normed where the model does so, rotated by position."""
        states = self.model.project(hidden, f"{name}.{which}_proj").view(len(hidden), heads, -1)
        if f"{name}.{which}_norm.weight" in self.model.weights:
            states = self.model.norm(states, f"{name}.{which}_norm")
        angles = positions[:, None].float() * self.model.frequencies
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        low, high = states.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).transpose(0, 1)
