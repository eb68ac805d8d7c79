"""The development model through the runner: real sizes, real weights, a few prompts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.api import SamplingParams
from shared.engine.cpu_model import CpuModel, load_model
from shared.engine.runner import TorchRunner
from tests.support.compiled import compiled
from tests.support.reference import Reference
from tests.support.replay import replay
from tests.support.stepper import Row, finish, greedy

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]
BLOCK_TOKENS = 32


@pytest.fixture(scope="module", params=["torch", "compiled"])
def model(request: pytest.FixtureRequest, model_directory: Path) -> CpuModel:
    library = compiled() if request.param == "compiled" else None
    return load_model(model_directory, "float32", library=library)


@pytest.fixture(scope="module")
def reference(model_directory: Path) -> Reference:
    return Reference.load(model_directory)


def prompt(length: int, seed: int) -> list[int]:
    """Ids of ordinary words, beyond the bytes and special tokens."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(300, 20_000, (length,), generator=random).tolist()


def test_chunks_batches_and_settings_are_replayed(model: CpuModel, reference: Reference) -> None:
    runner = TorchRunner(model, kv_blocks=64, block_tokens=BLOCK_TOKENS)
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 1 << 50},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "seed": 5},
    ]
    lengths = (BLOCK_TOKENS * 5, 97, 31)
    rows = [
        Row(
            at,
            prompt(length, at),
            range(at * 12, at * 12 + 12),
            SamplingParams(**{"max_pos": 999, "seed": 0} | each),
        )
        for at, (length, each) in enumerate(zip(lengths, settings, strict=True))
    ]
    outputs = finish(runner, rows, 16, 64)
    for row, output, each in zip(rows, outputs, settings, strict=True):
        result = replay(reference, row.ids[: row.prompt_len], output, each)
        assert result.ok, result


def test_blocks_sent_as_bytes_continue_with_equal_tokens(model: CpuModel) -> None:
    here, there = (TorchRunner(model, kv_blocks=16, block_tokens=BLOCK_TOKENS) for _ in range(2))
    ids = prompt(170, 8)
    row = Row(1, ids.copy(), range(8))
    finish(here, [row], 24)
    for block in range(5):
        there.view(15 - block)[:] = here.view(block)
    blocks = [15 - index for index in range(9)]
    moved = Row(2, row.ids[:174], blocks, greedy(), done=5 * BLOCK_TOKENS, prompt_len=170)
    assert finish(there, [moved], 20)[0] == [each.id for each in row.drawn[4:]]
