"""Tiny checkpoints of every served architecture, their weights made by integer mixing: the same everywhere.

Golden logits, computed from them by transformers, are in tests/golden/families.json (see make_families).
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray[Any, np.dtype[np.float32]]

IDS = [7, 3, 41, 19, 0, 22, 33, 5, 12, 47, 28, 9, 3, 41, 16, 30, 2, 2, 38, 11, 25, 44, 1, 36, 20, 6]
BASE: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True},
    "llama-3.1": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_scaling": LLAMA3},
    "llama-biased": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "mistral-window": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 7},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False},
    "qwen2-window": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16},
    "qwen3-moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **EXPERTS},
}


def family_config(name: str) -> dict[str, Any]:
    """config.json of one family."""
    return BASE | FAMILIES[name]


def write_family(directory: Path, name: str) -> Path:
    """Write config and weights of one family (no tokenizer) into `directory`; returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    config = family_config(name)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = family_tensors(config)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def family_tensors(config: dict[str, Any]) -> dict[str, Array]:
    """Weights under their Hugging Face names."""
    width, head_dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    kind = config["model_type"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
        outputs = {"q": queries, "k": keys, "v": keys}
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": (rows, width) for name, rows in outputs.items()}
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (width, queries)
        if kind == "qwen2" or config.get("attention_bias"):
            shapes |= {f"{prefix}.self_attn.{name}_proj.bias": (rows,) for name, rows in outputs.items()}
        if config.get("attention_bias"):
            shapes[f"{prefix}.self_attn.o_proj.bias"] = (width,)
        if kind.startswith("qwen3"):
            shapes |= {f"{prefix}.self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
        shapes |= _mlp_shapes(f"{prefix}.mlp", config)
    return {name: mixed(name, shape) for name, shape in shapes.items()}


def _mlp_shapes(prefix: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, count = config["hidden_size"], config.get("num_experts", 0)
    ffn = config["moe_intermediate_size"] if count else config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}.gate.weight": (count, width)} if count else {}
    for part in [f"{prefix}.experts.{number}" for number in range(count)] or [prefix]:
        shapes |= {f"{part}.{name}_proj.weight": (ffn, width) for name in ("gate", "up")}
        shapes[f"{part}.down_proj.weight"] = (width, ffn)
        if config.get("mlp_bias"):
            shapes |= {f"{part}.{name}_proj.bias": (ffn,) for name in ("gate", "up")}
            shapes[f"{part}.down_proj.bias"] = (width,)
    return shapes


def mixed(name: str, shape: tuple[int, ...]) -> Array:
    """Values of one tensor: splitmix64 of (name, index), spread to suit what the tensor is."""
    word = np.arange(np.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    word += np.uint64(zlib.crc32(name.encode()) << 20)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    unit = ((word ^ (word >> np.uint64(31))) >> np.uint64(40)).astype(np.float32) / 2.0**24 - 0.5
    values = unit.reshape(shape)
    if name.endswith("norm.weight"):
        return np.asarray(1.2 + values, dtype=np.float32)
    if len(shape) == 1:
        return values
    gain = 9.0 if "v_proj" in name or "o_proj" in name else 6.0
    return np.asarray(values * (gain / shape[-1] ** 0.5), dtype=np.float32)
