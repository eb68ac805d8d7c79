"""Ties reference, tokenizer and converted weights to what transformers computes (scripts/make_golden.py)."""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
from tokenizers import Tokenizer

from tests.support.reference import Reference
from tests.support.replay import replay

pytestmark = pytest.mark.model
GOLDEN = json.loads((Path(__file__).parent / "smollm2.json").read_text(encoding="utf-8"))
each_prompt = pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=["chat", "turns", "text"])


@pytest.fixture(scope="module")
def reference(model_directory: Path) -> Reference:
    return Reference.load(model_directory)


@pytest.fixture(scope="module")
def tokenizer(model_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_directory / "tokenizer.json"))


@each_prompt
def test_the_tokenizer_gives_the_same_ids(tokenizer: Tokenizer, golden: dict[str, Any]) -> None:
    assert tokenizer.encode(golden["text"]).ids == golden["ids"]
    assert tokenizer.decode(golden["ids"], skip_special_tokens=False) == golden["text"]


@each_prompt
def test_the_logits_are_the_same(reference: Reference, golden: dict[str, Any]) -> None:
    rows = len(golden["top_ids"])
    logits = reference.context().forward(golden["ids"], last=rows)
    best = logits.gather(-1, torch.tensor(golden["top_ids"]))
    assert torch.allclose(best, torch.tensor(golden["top_logits"]), atol=5e-4, rtol=0)
    assert torch.equal(logits.topk(3).indices, torch.tensor(golden["top_ids"])[:, :3])
    assert torch.allclose(logits.mean(-1), torch.tensor(golden["mean"]), atol=1e-4, rtol=0)
    assert torch.allclose(logits.std(-1), torch.tensor(golden["std"]), atol=1e-4, rtol=0)


@each_prompt
def test_the_greedy_answer_is_the_same(reference: Reference, golden: dict[str, Any]) -> None:
    report = replay(reference, golden["ids"], golden["greedy_ids"], {"temperature": 0})
    assert not report.differences, str(report)


def test_a_damaged_weight_shows(model_directory: Path) -> None:
    damaged = Reference.load(model_directory)
    name = "model.layers.7.self_attn.k_proj.weight"
    damaged.weights[name] = damaged.weights[name].flip(0)
    golden = GOLDEN["prompts"][0]
    assert not replay(damaged, golden["ids"], golden["greedy_ids"], {"temperature": 0}).ok


def test_special_tokens_are_single_ids(tokenizer: Tokenizer, model_directory: Path) -> None:
    config = json.loads((model_directory / "config.json").read_text())
    assert tokenizer.encode("<|im_end|>").ids == [config["eos_token_id"]] == [2]
    assert tokenizer.encode("<|im_start|>").ids == [config["bos_token_id"]] == [1]
    assert tokenizer.encode("<|endoftext|>").ids == [0]
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.encode("2026").tokens == ["2", "0", "2", "6"]


@pytest.mark.parametrize("number", [0, 1])
def test_the_chat_template_renders_the_golden_chats(model_directory: Path, number: int) -> None:
    settings = json.loads((model_directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = jinja2.Template(settings["chat_template"])
    text = template.render(messages=GOLDEN["chats"][number], add_generation_prompt=True)
    assert text == GOLDEN["prompts"][number]["text"]
