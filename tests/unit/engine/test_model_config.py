"""config.json: what is read from it, and that anything not computed is refused by key and value."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.model_config import ModelConfig, Rope, read_config
from shared.engine.rope import frequencies
from shared.errors import ModelError
from tests.support.mixed_weights import LLAMA3, family_config


def read(directory: Path, family: str = "llama", **changes: Any) -> ModelConfig:
    """Decode a family's config with keys changed; a value of ... leaves the key out."""
    raw = family_config(family) | changes
    kept = {key: value for key, value in raw.items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(kept))
    return read_config(directory)


def test_defaults_of_keys_left_out(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=..., head_dim=..., rope_theta=..., rms_norm_eps=...)
    assert (config.kv_heads, config.head_dim, config.group) == (4, 8, 1)
    assert config.rope == Rope(10000.0)
    assert config.eps == 1e-6


def test_both_ways_to_write_rope(tmp_path: Path) -> None:
    old = read(tmp_path, rope_theta=5e5, rope_scaling=LLAMA3)
    new = read(tmp_path, rope_theta=..., rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    older = read(tmp_path, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    assert old.rope == new.rope == Rope(5e5, "llama3", 8.0, 1.0, 4.0, 64)
    assert older.rope == Rope(5e5, "linear", 2.0)


def test_llama3_frequencies_keep_the_short_waves_and_stretch_the_long() -> None:
    rope = Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    plain, scaled = frequencies(Rope(500000.0), 128), frequencies(rope, 128)
    assert torch.equal(scaled[:20], plain[:20])
    assert torch.allclose(scaled[-20:], plain[-20:] / 8)
    assert bool((scaled <= plain).all())


def test_windows_by_layer(tmp_path: Path) -> None:
    assert read(tmp_path, "mistral-window").windows == (7, 7, 7)
    assert read(tmp_path, "mistral").windows == (None,) * 3
    assert read(tmp_path, "qwen2-window").windows == (None, 5, 5)
    assert read(tmp_path, "qwen2-window", use_sliding_window=False).windows == (None,) * 3
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert read(tmp_path, "qwen2-window", layer_types=kinds).windows == (5, None, 5)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
    ("llama", {"architectures": ...}, "architectures"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
    ("llama", {"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}, "high_freq_factor"),
    ("llama", {"rope_scaling": "yes"}, "rope_scaling"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("llama", {"hidden_size": ...}, "hidden_size"),
    ("llama", {"hidden_size": 30, "head_dim": ...}, "hidden_size"),
    ("llama", {"head_dim": 7}, "head_dim"),
    ("llama", {"vocab_size": -1}, "vocab_size"),
    ("llama", {"num_hidden_layers": True}, "num_hidden_layers"),
    ("llama", {"rms_norm_eps": "small"}, "rms_norm_eps"),
    ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ("mistral-window", {"sliding_window": 0}, "sliding_window"),
    ("qwen2-window", {"layer_types": ["full_attention"]}, "layer_types"),
    (
        "qwen2-window",
        {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        "layer_types",
    ),
    ("qwen3-moe", {"mlp_only_layers": [1]}, "mlp_only_layers"),
    ("qwen3-moe", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
]


@pytest.mark.parametrize(("family", "changes", "word"), REFUSED)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, family: str, changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(ModelError) as caught:
        read(tmp_path, family, **changes)
    assert word in str(caught.value)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null"])
def test_a_damaged_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)
