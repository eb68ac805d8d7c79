"""Every served architecture against logits that transformers computed for the same tiny checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shared.engine.api import StepPlan
from shared.engine.device.runner import DeviceRunner
from shared.engine.runner import TorchRunner
from tests.support.compiled import compiled
from tests.support.mixed_weights import FAMILIES, IDS, write_family
from tests.support.stepper import Row, finish, greedy, step

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "families.json").read_text())
BLOCK_TOKENS = 4
SPLITS = {"one_shot": [26], "chunked": [9, 7, 10], "one_by_one": [1] * 26, "mixed": [3, 1, 1, 15, 1, 5]}


def host(directory: Path, *, dtype: str = "float32", kv_blocks: int = 8) -> TorchRunner:
    return TorchRunner(directory, dtype=dtype, kv_blocks=kv_blocks, block_tokens=BLOCK_TOKENS)


def in_cpp(directory: Path, *, dtype: str = "float32", kv_blocks: int = 8) -> TorchRunner:
    """A CPU's runner with compiled code."""
    return TorchRunner(
        directory, dtype=dtype, kv_blocks=kv_blocks, block_tokens=BLOCK_TOKENS, library=compiled()
    )


def device(directory: Path, *, dtype: str = "float32", kv_blocks: int = 8) -> DeviceRunner:
    """A GPU's runner, with the kernels' references."""
    return DeviceRunner(directory, dtype=dtype, kv_blocks=kv_blocks, block_tokens=BLOCK_TOKENS, device="cpu")


Make = Callable[..., TorchRunner | DeviceRunner]
every = pytest.mark.parametrize("make", [host, in_cpp, device])


@every
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path: Path, make: Make, family: str, split: str) -> None:
    runner = make(write_family(tmp_path, family))
    want = dict(zip(GOLDEN["rows"], GOLDEN[family], strict=True))
    params = greedy(logprobs=runner.vocab)
    done = 0
    for count in SPLITS[split]:
        row = Row(1, IDS[: done + count], range(8), params, done)
        step(runner, [(row, count)])
        done += count
        if done - 1 in want:
            scores = torch.tensor([score for _, score in sorted(row.drawn[0].top)])
            expected = torch.log_softmax(torch.tensor(want[done - 1]), 0)
            torch.testing.assert_close(scores, expected, rtol=0, atol=1e-4)
    runner.execute(StepPlan((), ended=(1,)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("make", "dtype"), [(host, "bfloat16"), (in_cpp, "bfloat16"), (device, "bfloat16"), (device, "float16")]
)
def test_half_precision_stays_close(tmp_path: Path, make: Make, family: str, dtype: str) -> None:
    runner = make(write_family(tmp_path, family), dtype=dtype)
    row = Row(1, IDS.copy(), range(8), greedy(logprobs=runner.vocab))
    for count in (17, 1, 8):
        step(runner, [(row, count)])
    scores = torch.tensor([score for _, score in sorted(row.drawn[0].top)])
    expected = torch.log_softmax(torch.tensor(GOLDEN[family][-1]), 0)
    assert float((scores - expected).abs().mean()) < 0.15


@every
@pytest.mark.parametrize("family", ["mistral-window", "qwen2-window", "qwen3-moe"])
def test_a_batch_of_unequal_lengths_gives_what_each_gives_alone(
    tmp_path: Path, make: Make, family: str
) -> None:
    runner = make(write_family(tmp_path, family), kv_blocks=200)
    prompts = [IDS[:length] for length in (1, 4, 6, 7, 8, 20, 26)]

    def rows(first: int) -> list[Row]:
        return [
            Row(first + at, prompt.copy(), range(at * 12, at * 12 + 12)) for at, prompt in enumerate(prompts)
        ]

    alone = [finish(runner, [row], 12)[0] for row in rows(0)]
    runner.execute(StepPlan((), ended=tuple(range(len(prompts)))))
    assert finish(runner, rows(100), 12) == alone
