"""Turns one Llama GGUF file into a Hugging Face directory, float32, byte for byte the same each time.

Knows the GGUF names, the rotary permutation of q and k, and how a byte-level BPE tokenizer is written down.
Knows nothing of where the file came from or where the directory is kept (`scripts.model_cache`).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

Array = np.ndarray[Any, np.dtype[np.float32]]

CONTROL_TOKEN = 3
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


class UnsupportedGguf(Exception):
    """The file holds something this converter does not know; the message names the key and its value."""


def convert(source: Path, target: Path, progress: Callable[[int, int], None]) -> None:
    """Write config, weights, tokenizer and chat template of `source` into the existing folder `target`.

    `progress(done, total)` is called after each tensor.
    """
    reader = GGUFReader(source)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    _expect(metadata, "general.architecture", "llama")
    _expect(metadata, "tokenizer.ggml.model", "gpt2")
    _expect(metadata, "tokenizer.ggml.pre", "smollm")
    config = _config(metadata)
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", _generation_config(metadata))
    _write_json(target / "tokenizer.json", _tokenizer(metadata))
    _write_json(target / "tokenizer_config.json", _tokenizer_config(metadata))
    tensors: dict[str, Array] = {}
    for name, tensor in _tensors(reader, config):
        tensors[name] = tensor
        progress(len(tensors), len(reader.tensors))
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def _expect(metadata: dict[str, Any], key: str, value: str) -> None:
    if metadata.get(key) != value:
        raise UnsupportedGguf(f"{key} is {metadata.get(key)!r}; only {value!r} is supported")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.rope.dimension_count"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": metadata["llama.rope.freq_base"],
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        **_token_ids(metadata),
    }


def _token_ids(metadata: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    return _token_ids(metadata)


def _special_tokens(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [
        {"id": number, "content": token, **flags}
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == CONTROL_TOKEN
    ]


def _tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _special_tokens(metadata),
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "GPT2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _tensors(reader: GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if tensor.name in TOP_TENSORS:
            yield TOP_TENSORS[tensor.name], values
            continue
        prefix, layer, kind, suffix = (*tensor.name.split("."), "", "", "")[:4]
        if prefix != "blk" or kind not in LAYER_TENSORS or suffix != "weight":
            raise UnsupportedGguf(f"tensor {tensor.name!r} is not part of a plain Llama model")
        if kind in heads:
            values = _unpermute(values, heads[kind])
        yield f"model.layers.{layer}.{LAYER_TENSORS[kind]}.weight", np.ascontiguousarray(values)


def _unpermute(weight: Array, heads: int) -> Array:
    """GGUF interleaves the two rotary halves of each head, (i, i + d/2) side by side; put the halves back."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
