"""A small GGUF file, written here as llama.cpp writes one, comes out as the model it was made of."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from scripts.gguf_to_hf import LAYER_TENSORS, TOP_TENSORS, UnsupportedGguf, convert
from tests.support.reference import Reference
from tests.support.tiny_model import TinyShape, tiny_config, tiny_model, tiny_tensors

SHAPE = TinyShape(tied=True, layers=1)


def permuted(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp's own order of q and k rows (convert_hf_to_gguf.py, `permute`)."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def written(path: Path, tokenizer: dict[str, Any], tensors: dict[str, Tensor], pre: str = "smollm") -> Path:
    words = list(tokenizer["model"]["vocab"])
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "vocab_size": len(words),
        "embedding_length": SHAPE.hidden,
        "feed_forward_length": SHAPE.ffn,
        "block_count": SHAPE.layers,
        "attention.head_count": SHAPE.heads,
        "attention.head_count_kv": SHAPE.kv_heads,
        "rope.dimension_count": SHAPE.head_dim,
        "context_length": SHAPE.max_position,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", pre)
    writer.add_array("tokenizer.ggml.tokens", words)
    writer.add_array("tokenizer.ggml.token_type", [3, 3, 3] + [1] * (len(words) - 3))
    writer.add_array("tokenizer.ggml.merges", [" ".join(merge) for merge in tokenizer["model"]["merges"]])
    for name, number in {"bos": 1, "eos": 2, "unknown": 0, "padding": 2}.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    writer.add_string("tokenizer.chat_template", "{{ messages }}")
    for short, long in TOP_TENSORS.items():
        writer.add_tensor(short, tensors[long].numpy())
    for short, long in LAYER_TENSORS.items():
        tensor = tensors[f"model.layers.0.{long}.weight"]
        heads = {"attn_q": SHAPE.heads, "attn_k": SHAPE.kv_heads}.get(short)
        values = permuted(tensor, heads) if heads else tensor
        writer.add_tensor(f"blk.0.{short}.weight", np.ascontiguousarray(values.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        (tiny_model(tmp_path / "tiny", 0, SHAPE) / "tokenizer.json").read_text()
    )
    return made


def test_weights_config_and_tokenizer_survive(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    vocab = len(tokenizer["model"]["vocab"])
    tensors = tiny_tensors(SHAPE, vocab, seed=8)
    source = written(tmp_path / "model.gguf", tokenizer, tensors)
    target = tmp_path / "out"
    target.mkdir()
    seen: list[int] = []
    convert(source, target, lambda done, total: seen.append(total - done))
    assert seen == list(range(len(tensors) - 1, -1, -1))
    made = Reference.load(target)
    assert made.weights.keys() == tensors.keys()
    assert all(torch.equal(made.weights[name], tensor) for name, tensor in tensors.items())
    ids = list(range(10, 40))
    original = Reference(tiny_config(SHAPE, vocab), tensors)
    assert torch.equal(made.logits(ids), original.logits(ids))
    text = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert text.decode(text.encode("the 12 words").ids) == "the 12 words"
    assert text.encode("12<|im_end|>").tokens == ["1", "2", "<|im_end|>"]
    settings = json.loads((target / "tokenizer_config.json").read_text())
    assert (settings["eos_token"], settings["chat_template"]) == ("<|im_end|>", "{{ messages }}")


def test_another_pre_tokenizer_is_refused_by_its_key(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    tensors = tiny_tensors(SHAPE, len(tokenizer["model"]["vocab"]), seed=8)
    source = written(tmp_path / "model.gguf", tokenizer, tensors, pre="llama-bpe")
    with pytest.raises(UnsupportedGguf, match=r"tokenizer\.ggml\.pre is 'llama-bpe'"):
        convert(source, tmp_path, lambda done, total: None)
