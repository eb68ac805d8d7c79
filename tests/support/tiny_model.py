"""A tiny random model as a Hugging Face directory, with a working tokenizer: made and loaded in milliseconds.

Its logits have a standard deviation of at least 3 and depend on every earlier id, so that a wrong, missing or
foreign KV entry changes the tokens. It shares no code with the engine.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 2
PAIRS = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha ou le me de hi ri ro ic"
)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@dataclass(frozen=True)
class TinyShape:
    """Sizes of a tiny model. `family` decides biases (qwen2) and query and key norms (qwen3)."""

    family: str = "llama"
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    tied: bool = False
    max_position: int = 4096


def tiny_model(directory: Path, seed: int = 0, shape: TinyShape | None = None) -> Path:
    """Write config, weights (float32), tokenizer and template into `directory`; returns it. Equal arguments
    give equal bytes."""
    shape = shape or TinyShape()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    vocab = len(tokenizer["model"]["vocab"])
    _write(directory / "config.json", tiny_config(shape, vocab))
    _write(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": EOS_ID})
    _write(directory / "tokenizer.json", tokenizer)
    settings = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[EOS_ID], "chat_template": TEMPLATE}
    _write(directory / "tokenizer_config.json", settings)
    save_file(tiny_tensors(shape, vocab, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def tiny_config(shape: TinyShape, vocab: int) -> dict[str, Any]:
    """config.json of a tiny model."""
    return {
        "architectures": [FAMILIES[shape.family]],
        "model_type": shape.family,
        "vocab_size": vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": EOS_ID,
    }


def tiny_tensors(shape: TinyShape, vocab: int, seed: int) -> dict[str, Tensor]:
    """Random weights under their Hugging Face names.

    Embeddings are small beside what the layers add, so that the last id does not drown the context; the final
    norm brings the logits up to a standard deviation of about 4. Sharp attention makes single entries matter.
    """
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=random) * (gain / math.sqrt(columns))

    def vector(size: int, centre: float, spread: float) -> Tensor:
        return centre + spread * torch.randn(size, generator=random)

    width, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors = {
        "model.embed_tokens.weight": matrix(vocab, width, 0.5),
        "model.norm.weight": vector(width, 8.0 if shape.tied else 4.0, 0.2),
    }
    if not shape.tied:
        tensors["lm_head.weight"] = matrix(vocab, width)
    for layer in range(shape.layers):
        parts = {
            "input_layernorm.weight": vector(width, 1.0, 0.2),
            "post_attention_layernorm.weight": vector(width, 1.0, 0.2),
            "self_attn.q_proj.weight": matrix(queries, width, 1.5),
            "self_attn.k_proj.weight": matrix(keys, width, 1.5),
            "self_attn.v_proj.weight": matrix(keys, width, 3.0),
            "self_attn.o_proj.weight": matrix(width, queries, 3.0),
            "mlp.gate_proj.weight": matrix(shape.ffn, width),
            "mlp.up_proj.weight": matrix(shape.ffn, width),
            "mlp.down_proj.weight": matrix(width, shape.ffn),
        }
        if shape.family == "qwen2":
            sizes = {"q": queries, "k": keys, "v": keys}
            parts |= {f"self_attn.{name}_proj.bias": vector(size, 0.0, 0.3) for name, size in sizes.items()}
        if shape.family == "qwen3":
            parts |= {f"self_attn.{name}_norm.weight": vector(shape.head_dim, 1.5, 0.2) for name in "qk"}
        tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in parts.items()}
    return tensors


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _byte_characters() -> list[str]:
    """What byte-level BPE writes for each byte: the character where printable, else one from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _tokenizer() -> dict[str, Any]:
    """tokenizer.json: three special tokens, the 256 bytes, and a few dozen merges."""
    characters = _byte_characters()
    space = characters[ord(" ")]
    merges = [[pair[0], pair[1]] for pair in PAIRS.split()]
    merges += [[space, letter] for letter in "abcdefghilmnoprstuwy"]
    merges += [["th", "e"], [space, "the"], ["in", "g"], ["an", "d"], [space, "and"]]
    words = [*SPECIALS, *characters, *("".join(merge) for merge in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, "content": text, **flags} for at, text in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: at for at, word in enumerate(words)},
            "merges": merges,
        },
    }
