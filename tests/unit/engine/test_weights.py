"""Directories that cannot be served are refused by name; those that can are read whatever their form."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.engine.cpu_model import load_model
from shared.engine.model import LlamaModel
from shared.errors import ModelError
from tests.support.tiny_model import TinyShape, tiny_model

WEIGHTS = "model.safetensors"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


def rewrite(directory: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Save the weights again with tensors replaced, added or (None) left out."""
    tensors = load_file(directory / WEIGHTS)
    for name, tensor in change.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, directory / WEIGHTS)


def shard(directory: Path) -> None:
    """Split the weights into two files and an index."""
    tensors = load_file(directory / WEIGHTS)
    (directory / WEIGHTS).unlink()
    names = sorted(tensors)
    placed: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, directory / file)
        placed |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": placed}
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def loaded(directory: Path) -> LlamaModel:
    model = load_model(directory, "float32")
    assert isinstance(model, LlamaModel)
    return model


def test_shards_load_as_one_file_does(directory: Path) -> None:
    whole = loaded(directory)
    shard(directory)
    parts = loaded(directory)
    assert torch.equal(whole.embedding, parts.embedding)
    rows = torch.randn(3, whole.config.hidden)
    for one, other in zip(whole.layers, parts.layers, strict=True):
        assert torch.equal(one.qkv(rows), other.qkv(rows))


def test_progress_counts_tensors(directory: Path) -> None:
    calls: list[tuple[int, int]] = []
    load_model(directory, "float32", lambda done, total: calls.append((done, total)))
    total = len(load_file(directory / WEIGHTS))
    assert calls == [(done, total) for done in range(1, total + 1)]


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_weights_are_widened(directory: Path, stored: torch.dtype) -> None:
    rewrite(directory, {name: each.to(stored) for name, each in load_file(directory / WEIGHTS).items()})
    expected = load_file(directory / WEIGHTS)["model.embed_tokens.weight"].float()
    assert torch.equal(load_model(directory, "float32").embedding, expected)


def test_tied_embeddings_need_no_head(tmp_path: Path) -> None:
    directory = tiny_model(tmp_path, shape=TinyShape(tied=True))
    rewrite(directory, {"lm_head.weight": torch.zeros(3)})  # some checkpoints carry one all the same
    model = loaded(directory)
    hidden = torch.randn(2, model.config.hidden)
    expected = model.norm(hidden, torch.float32) @ model.embedding.T
    torch.testing.assert_close(model.logits(hidden), expected)


def refused(directory: Path, *words: str, dtype: str = "float32") -> None:
    with pytest.raises(ModelError) as caught:
        load_model(directory, dtype)
    for word in words:
        assert word in str(caught.value), f"{word!r} not in {caught.value}"


def test_a_missing_tensor_is_named(directory: Path) -> None:
    rewrite(directory, {"model.layers.1.mlp.up_proj.weight": None})
    refused(directory, "model.layers.1.mlp.up_proj.weight")


def test_a_wrong_shape_is_told_with_both(directory: Path) -> None:
    rewrite(directory, {"model.norm.weight": torch.zeros(65)})
    refused(directory, WEIGHTS, "model.norm.weight", "[65]", "[64]")


def test_a_dtype_that_is_not_float_is_refused(directory: Path) -> None:
    rewrite(directory, {"model.norm.weight": torch.zeros(64, dtype=torch.int8)})
    refused(directory, "model.norm.weight", "I8", "BF16")


def test_tensors_without_a_place_are_refused(directory: Path) -> None:
    rewrite(directory, {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})
    refused(directory, "model.layers.0.self_attn.q_proj.bias", "LlamaForCausalLM")


def test_known_leftovers_are_passed_over(directory: Path) -> None:
    rewrite(directory, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    load_model(directory, "float32")


@pytest.mark.parametrize("keep", [0, 4, 100, 5000])
def test_a_file_cut_short_is_refused(directory: Path, keep: int) -> None:
    data = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(data[:keep])
    refused(directory, WEIGHTS, "damaged or cut short")


def test_a_damaged_header_is_refused(directory: Path) -> None:
    data = bytearray((directory / WEIGHTS).read_bytes())
    data[9:30] = b"\xff" * 21
    (directory / WEIGHTS).write_bytes(bytes(data))
    refused(directory, WEIGHTS, "damaged or cut short")


def test_a_missing_shard_is_named(directory: Path) -> None:
    shard(directory)
    (directory / "model-00002-of-00002.safetensors").unlink()
    refused(directory, "model-00002-of-00002.safetensors", "index")


def test_a_shard_outside_the_directory_is_refused(directory: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    refused(directory, "../elsewhere.safetensors")


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "{"])
def test_a_damaged_index_is_refused(directory: Path, text: str) -> None:
    (directory / f"{WEIGHTS}.index.json").write_text(text)
    refused(directory, f"{WEIGHTS}.index.json")


def test_one_tensor_in_two_files_is_refused(directory: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(64)}, directory / "more.safetensors")
    refused(directory, "model.norm.weight", "more.safetensors")


def test_no_weights_and_no_directory(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    refused(directory, "no *.safetensors")
    refused(directory / "absent", "config.json")


def test_an_unknown_dtype_is_refused(directory: Path) -> None:
    refused(directory, "int4", "bfloat16", dtype="int4")
