"""config.json of a model directory, decoded strictly: what the engine computes, or a refusal by key.

A key that would change the numbers and is not computed here is refused, never ignored. Knows no tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ModelError

_PLAIN: dict[str, tuple[object, ...]] = {
    # keys that change the numbers, with the values under which they do not
    "quantization_config": (None,),
    "hidden_act": ("silu", None),
    "partial_rotary_factor": (None, 1.0),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "pretraining_tp": (None, 1),
    "mrope_section": (None,),
    "no_rope_layers": (None, []),
    "attention_chunk_size": (None,),
    "mlp_only_layers": (None, []),
    "decoder_sparse_step": (None, 1),
}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: `theta`, and how its frequencies are scaled ("default", "linear" or "llama3")."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of each MLP."""

    count: int
    per_token: int
    ffn: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of one Llama-family model."""

    architecture: str
    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    eps: float
    rope: Rope
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[
        int | None, ...
    ] = ()  # per layer: earlier positions a token sees, itself included; None: all
    experts: Experts | None = None

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


def read_config(directory: Path) -> ModelConfig:
    """Decode `directory`/config.json. Raises ModelError naming file, key, value and what is served."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}; point `model` at a model directory") from error
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: a JSON object is expected, not {type(raw).__name__}")
    return _Reader(path, raw).config()


class _Reader:
    """One config.json; each getter names file, key and value when it refuses."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self.path = path
        self.raw = raw

    def refuse(self, key: str, advice: str) -> ModelError:
        return ModelError(f"{self.path}: {key} is {self.raw.get(key)!r}; {advice}")

    def size(self, key: str, default: int | None = None) -> int:
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(key, "a positive integer is needed")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.refuse(key, "a positive number is needed")
        return float(value)

    def switch(self, key: str, default: bool = False) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false is needed")
        return value

    def config(self) -> ModelConfig:
        names = self.raw.get("architectures")
        name = names[0] if isinstance(names, list) and len(names) == 1 else None
        build = _ARCHITECTURES.get(name) if isinstance(name, str) else None
        if not isinstance(name, str) or build is None:
            raise self.refuse("architectures", f"served are {', '.join(_ARCHITECTURES)}")
        for key, allowed in _PLAIN.items():
            if self.raw.get(key) not in allowed:
                raise self.refuse(key, f"only {allowed[-1]!r} is served for {name}")
        return build(self, self._base(name))

    def _base(self, name: str) -> dict[str, Any]:
        hidden, heads = self.size("hidden_size"), self.size("num_attention_heads")
        kv_heads = self.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise self.refuse("num_key_value_heads", f"it has to divide num_attention_heads ({heads})")
        if self.raw.get("head_dim") is None and hidden % heads:
            raise self.refuse("hidden_size", f"without head_dim it has to be a multiple of {heads} heads")
        head_dim = self.size("head_dim", hidden // heads)
        if head_dim % 2:
            raise self.refuse("head_dim", "rotary embedding needs an even number")
        return {
            "architecture": name,
            "vocab": self.size("vocab_size"),
            "hidden": hidden,
            "ffn": self.size("intermediate_size"),
            "layers": self.size("num_hidden_layers"),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "max_context": self.size("max_position_embeddings"),
            "eps": self.number("rms_norm_eps", 1e-6),
            "rope": self.rope(),
            "tied": self.switch("tie_word_embeddings"),
        }

    def rope(self) -> Rope:
        """`rope_theta` and `rope_scaling`, or `rope_parameters`, which holds both."""
        key = "rope_parameters" if self.raw.get("rope_parameters") else "rope_scaling"
        scaling = self.raw.get(key) or {}
        if not isinstance(scaling, dict):
            raise self.refuse(key, "an object is needed")
        inner = _Reader(self.path, {f"{key}.{name}": value for name, value in scaling.items()})
        theta = inner.number(f"{key}.rope_theta", self.number("rope_theta", 10000.0))
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "default":
            return Rope(theta)
        factor = inner.number(f"{key}.factor", 0.0)
        if not factor:
            raise inner.refuse(f"{key}.factor", f"rope_type {kind!r} needs one")
        if kind == "linear":
            return Rope(theta, kind, factor)
        if kind == "llama3":
            low = inner.number(f"{key}.low_freq_factor", 1.0)
            high = inner.number(f"{key}.high_freq_factor", 4.0)
            if high <= low:
                raise inner.refuse(f"{key}.high_freq_factor", f"it has to be above low_freq_factor ({low})")
            return Rope(theta, kind, factor, low, high, inner.size(f"{key}.original_max_position_embeddings"))
        raise self.refuse(key, "rope types default, linear and llama3 are served")

    def windows(self, layers: int, *, first: int = 0, on: bool = True) -> tuple[int | None, ...]:
        """Sliding windows per layer: `layer_types` where present, else every layer from `first` on."""
        window = self.raw.get("sliding_window")
        if not on or window is None:
            return (None,) * layers
        width = self.size("sliding_window")
        kinds = self.raw.get("layer_types")
        if kinds is None:
            return tuple(width if layer >= first else None for layer in range(layers))
        known = {"full_attention": None, "sliding_attention": width}
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
            raise self.refuse(
                "layer_types", f"{layers} of 'full_attention' or 'sliding_attention' are needed"
            )
        return tuple(known[kind] for kind in kinds)

    def experts(self) -> Experts:
        count, per_token = self.size("num_experts"), self.size("num_experts_per_tok")
        if per_token > count:
            raise self.refuse("num_experts_per_tok", f"at most num_experts ({count})")
        ffn = self.size("moe_intermediate_size")
        return Experts(count, per_token, ffn, self.switch("norm_topk_prob"))


def _llama(reader: _Reader, base: dict[str, Any]) -> ModelConfig:
    bias = reader.switch("attention_bias")
    return ModelConfig(
        **base, qkv_bias=bias, output_bias=bias, mlp_bias=reader.switch("mlp_bias"), windows=_all(base)
    )


def _mistral(reader: _Reader, base: dict[str, Any]) -> ModelConfig:
    return ModelConfig(**base, windows=reader.windows(base["layers"]))


def _qwen2(reader: _Reader, base: dict[str, Any]) -> ModelConfig:
    first = reader.raw.get("max_window_layers") or 0
    windows = reader.windows(base["layers"], first=first, on=reader.switch("use_sliding_window"))
    return ModelConfig(**base, qkv_bias=True, windows=windows)


def _qwen3(reader: _Reader, base: dict[str, Any]) -> ModelConfig:
    bias = reader.switch("attention_bias")
    first = reader.raw.get("max_window_layers") or 0
    windows = reader.windows(base["layers"], first=first, on=reader.switch("use_sliding_window"))
    if reader.raw.get("head_dim") is None:
        base["head_dim"] = 128  # what the architecture takes where the key is absent
    return ModelConfig(**base, qkv_bias=bias, output_bias=bias, qk_norm=True, windows=windows)


def _qwen3_moe(reader: _Reader, base: dict[str, Any]) -> ModelConfig:
    bias = reader.switch("attention_bias")
    windows = reader.windows(base["layers"], on=reader.switch("use_sliding_window"))
    return ModelConfig(
        **base, qkv_bias=bias, output_bias=bias, qk_norm=True, windows=windows, experts=reader.experts()
    )


def _all(base: dict[str, Any]) -> tuple[int | None, ...]:
    return (None,) * int(base["layers"])


_ARCHITECTURES: dict[str, Callable[[_Reader, dict[str, Any]], ModelConfig]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
}
