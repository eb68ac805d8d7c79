"""Replay finds every id that the reference would not have drawn, and the tiny model is fit to be replayed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.support.reference import Reference
from tests.support.replay import Difference, Replay, combined, generate, replay
from tests.support.tiny_model import FAMILIES, TinyShape, tiny_model

PROMPT = list(range(5, 60))
EVERYTHING: dict[str, Any] = {
    "temperature": 0.9,
    "seed": 2**63 + 5,
    "choice": 1,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {9: 2.0},
    "min_tokens": 8,
    "stop_ids": [77],
    "eos_ids": [2],
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.load(tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 3}, EVERYTHING])
def test_the_reference_agrees_with_itself(reference: Reference, sampling: dict[str, Any]) -> None:
    output = generate(reference, PROMPT, sampling, 60)
    report = replay(reference, PROMPT, output, sampling)
    assert report == Replay(draws=len(output))
    assert report.ok


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 3}])
def test_one_foreign_id_is_found_and_only_that(reference: Reference, sampling: dict[str, Any]) -> None:
    output = generate(reference, PROMPT, sampling, 12)
    output[5] = (output[5] + 1) % 300
    rest = generate(reference, PROMPT + output[:6], sampling, 6)
    report = replay(reference, PROMPT, output[:6] + rest, sampling)
    assert [each.position for each in report.wrong] == [len(PROMPT) + 5]
    assert not report.ok


def test_a_forgotten_prompt_block_is_found(reference: Reference) -> None:
    output = generate(reference, PROMPT[32:], {"temperature": 0}, 30)
    assert not replay(reference, PROMPT, output, {"temperature": 0}).ok


def test_a_shifted_position_is_found(reference: Reference) -> None:
    output = generate(reference, PROMPT, {"seed": 3}, 30)
    assert not replay(reference, PROMPT, output, {"seed": 4}).ok


def test_a_prompt_of_one_id(reference: Reference) -> None:
    output = generate(reference, [9], {"seed": 3}, 10)
    assert replay(reference, [9], output, {"seed": 3}).ok


def test_an_unknown_parameter_is_an_error(reference: Reference) -> None:
    with pytest.raises(TypeError, match="topk"):
        replay(reference, PROMPT, [1], {"topk": 4})


def excused(position: int) -> Difference:
    return Difference(position, 1, 2, excused=True)


def test_what_is_tolerated() -> None:
    assert Replay(40, (excused(7),)).ok
    assert not Replay(40, (excused(7), excused(20))).ok
    assert Replay(400, (excused(7), excused(20))).ok
    assert not Replay(400, (excused(7), excused(8)), neighbours=True).ok
    assert not Replay(400, (Difference(7, 1, 2, excused=False),)).ok
    assert not combined([Replay(100, (excused(1),)), Replay(100, (excused(5),)), Replay(90)]).ok
    assert "position 7: 1 for 2 (excused)" in str(Replay(40, (excused(7),)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tiny_model_is_lively(tmp_path: Path, family: str, tied: bool) -> None:
    model = Reference.load(tiny_model(tmp_path, 1, TinyShape(family=family, tied=tied)))
    ids = torch.randint(3, 300, (160,), generator=torch.Generator().manual_seed(0)).tolist()
    changed = [*ids[:20], (ids[20] + 1) % 300, *ids[21:]]
    logits = model.logits(ids)
    assert logits.std(-1).min() >= 3
    assert (logits - model.logits(changed))[-1].abs().max() > 0.05
    assert (logits.argmax(-1) == torch.tensor(ids)).float().mean() < 0.1  # not an echo of the last id


def test_the_tiny_model_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tiny_model(tmp_path / name, seed=4)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(names) == 5
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("text", ["the thing and that", "naïve 日本語 🙂\n\t", "a<|im_end|>b"])
def test_the_tiny_tokenizer_gives_back_every_text(tmp_path: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model(tmp_path) / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert (2 in ids) == ("<|im_end|>" in text)


def test_steps_and_whole_text_give_the_same_logits(reference: Reference) -> None:
    context = reference.context()
    parts = [context.forward(PROMPT[:7]), context.forward(PROMPT[7:8]), context.forward(PROMPT[8:])]
    assert torch.allclose(torch.cat(parts), reference.logits(PROMPT), atol=1e-4)
