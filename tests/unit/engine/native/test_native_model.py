"""Compiled steps: what a row becomes depends on its own context alone, to the last bit."""

import json
import os
import platform
import random
from pathlib import Path

import pytest
import torch

from shared.engine.api import Drawn, StepPlan
from shared.engine.native import build
from shared.engine.native.library import Library
from shared.engine.native.model import NativeModel
from shared.engine.runner import TorchRunner
from tests.support.compiled import compiled
from tests.support.mixed_weights import write_family
from tests.support.reference import Reference
from tests.support.stepper import Row, finish, greedy, step
from tests.support.tiny_model import TinyShape, tiny_model, tiny_tensors

BLOCK_TOKENS = 16
LONG = 1100  # tokens: more than two pieces of a context
SHAPES = {
    "groups": TinyShape(heads=6, kv_heads=2, hidden=72, ffn=100),
    "odd_sizes": TinyShape(heads=3, kv_heads=3, head_dim=18, hidden=50, ffn=71),
    "wide_heads": TinyShape("qwen3", heads=4, kv_heads=1, head_dim=80),
    "biased": TinyShape("qwen2", layers=3),
}


EVERY_WAY = {"float32": True, "bfloat16": True, "bfloat16 on vectors": False}
"""Dtypes, and whether on a matrix unit where there is one: without one the last two are the same."""


def runner(directory: Path, way: str, threads: int = 1) -> TorchRunner:
    made = TorchRunner(
        directory,
        dtype=way.partition(" ")[0],
        kv_blocks=400,
        block_tokens=BLOCK_TOKENS,
        threads=threads,
        library=compiled(matrix_unit=EVERY_WAY[way]),
    )
    assert isinstance(made.model, NativeModel)
    return made


def ids(count: int, vocab: int, seed: int) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(vocab) for _ in range(count)]


def outcome(made: TorchRunner, row: Row) -> tuple[object, list[bytes]]:
    """Everything that a row left: all scores after its last step, and the bytes of its full blocks."""
    full = row.done // BLOCK_TOKENS
    return row.drawn[-1], [bytes(made.view(block)) for block in row.blocks[:full]]


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_bit_depends_on_how_a_context_was_computed(tmp_path: Path, shape: str, way: str) -> None:
    directory = tiny_model(tmp_path, 3, SHAPES[shape])
    whole = runner(directory, way)
    prompt = ids(LONG, whole.vocab, 1)
    params = greedy(logprobs=whole.vocab)
    row = Row(1, prompt.copy(), range(70), params)
    step(whole, [(row, LONG)])
    expected = outcome(whole, row)

    cut = runner(directory, way, threads=2)
    others = [
        Row(10 + at, ids(40, cut.vocab, 9 + at), range(100 + 40 * at, 140 + 40 * at)) for at in range(3)
    ]
    row = Row(1, prompt.copy(), range(70), params)
    sizes = [1, 2, 300, 5, 97, 33, 8, 9, 1, 512, 64, LONG]
    for turn, size in enumerate(sizes):
        beside = [(other, 7) for other in others[: turn % 4] if other.done < 200]
        step(cut, [*beside, (row, size)] if turn % 2 else [(row, size), *beside])
    assert row.done == LONG
    assert outcome(cut, row) == expected


@pytest.mark.parametrize("window", [7, 40, 100])
@pytest.mark.parametrize("family", ["mistral-window", "qwen2-window"])
@pytest.mark.parametrize("way", ["float32", "bfloat16"])
def test_a_window_changes_nothing_of_that(tmp_path: Path, way: str, family: str, window: int) -> None:
    """A row's window within the keys that are taken at a time, and over several of them and a piece's end."""
    directory = write_family(tmp_path, family)
    config = json.loads((directory / "config.json").read_text())
    config |= {"max_position_embeddings": 1024, "sliding_window": window}
    (directory / "config.json").write_text(json.dumps(config))
    outcomes = []
    for sizes in ([600], [1] * 600, [9, 97, 64, 313, 117]):
        made = runner(directory, way)
        row = Row(1, ids(600, made.vocab, 4), range(40), greedy(logprobs=made.vocab))
        for size in sizes:
            step(made, [(row, size)])
        outcomes.append(outcome(made, row))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize(("flags", "lanes"), [("-mno-avx512f", 8), ("-mno-avx512f -mno-avx2 -mno-avx", 4)])
@pytest.mark.timeout(300)  # of which all but seconds is compiling
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_lesser_processor_computes_the_same(tmp_path: Path, flags: str, lanes: int, dtype: str) -> None:
    """Every number of rows in a step, on vectors of other widths; up to the rounding of other sums, and of
    what a matrix unit multiplies."""
    compiled()  # skips where there is no compiler
    library = Library(build.library({**os.environ, "CXX": f"c++ {flags}"}))
    assert library.lanes <= lanes
    directory = tiny_model(tmp_path, 3, SHAPES["groups"])
    prompt = ids(120, runner(directory, dtype).vocab, 1)
    scores = []
    for using in (library, compiled(matrix_unit=False), compiled()):
        made = TorchRunner(directory, dtype=dtype, kv_blocks=20, block_tokens=BLOCK_TOKENS, library=using)
        row = Row(1, prompt.copy(), range(10), greedy(logprobs=made.vocab))
        for count in range(1, 16):
            step(made, [(row, count)])
        scores.append(torch.tensor([score for _, score in sorted(row.drawn[0].top)]))
    bound = 2e-4 if dtype == "float32" else 0.3
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], rtol=0, atol=bound)


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_the_reference(tmp_path: Path, shape: str) -> None:
    made = runner(tiny_model(tmp_path, 3, SHAPES[shape]), "float32", threads=2)
    prompt = ids(LONG, made.vocab, 1)
    row = Row(1, prompt.copy(), range(70), greedy(logprobs=made.vocab))
    step(made, [(row, 1000), (Row(2, prompt[:30], range(80, 90)), 30)])
    step(made, [(row, 100)])
    exact = torch.log_softmax(Reference.load(tmp_path).logits(prompt)[-1], 0)
    scores = torch.tensor([score for _, score in sorted(row.drawn[0].top)])
    torch.testing.assert_close(scores, exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize("rows", [1, 13, 16, 17, 32, 33, 70])
@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_product_is_right_for_any_number_of_rows(tmp_path: Path, way: str, rows: int) -> None:
    """All that is rounded is what a matrix unit multiplies; a wrong place of a panel would be far off."""
    shape = SHAPES["groups"]
    made = runner(tiny_model(tmp_path, 3, shape), way, threads=2)
    weights = tiny_tensors(shape, made.vocab, 3)
    dtype = torch.bfloat16 if "bfloat16" in way else torch.float32
    head, norm = (weights[name].to(dtype).double() for name in ("lm_head.weight", "model.norm.weight"))
    states = torch.randn(rows, shape.hidden, generator=torch.Generator().manual_seed(rows))
    normed = states * torch.rsqrt((states.double() ** 2).mean(1, keepdim=True) + 1e-5) * norm
    if dtype == torch.bfloat16 and compiled(matrix_unit=EVERY_WAY[way]).matrix_unit:
        normed = normed.to(dtype).double()
    scores = made.model.logits(states)
    torch.testing.assert_close(scores.double(), normed @ head.T, rtol=0, atol=2e-5)


@pytest.mark.parametrize("way", EVERY_WAY)
def test_what_is_not_a_number_stays_with_its_sequence(tmp_path: Path, way: str) -> None:
    made = runner(tiny_model(tmp_path, 3, SHAPES["groups"]), way)
    prompt = ids(40, made.vocab, 2)
    expected = finish(made, [Row(1, prompt.copy(), range(5))], 6)[0]
    made.view(12)[:] = b"\xff" * len(made.view(12))  # all NaN
    good = Row(2, prompt.copy(), range(5, 10))
    poisoned = Row(3, prompt.copy(), [12, 13, 14], done=BLOCK_TOKENS)
    both = StepPlan((good.item(40, BLOCK_TOKENS), poisoned.item(40, BLOCK_TOKENS)))
    drawn, error = made.execute(both).drawn
    assert isinstance(drawn, Drawn)
    assert "not finite" in str(error)
    good.done, good.ids, good.drawn = 40, [*prompt, drawn.id], [drawn]
    assert finish(made, [good], 6)[0] == expected
