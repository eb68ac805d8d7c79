"""Steps of the torch runner against the reference: whatever the splits, batches and roads of the KV."""

import random
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from shared.engine.api import SamplingParams, StepPlan, WorkItem
from shared.engine.cpu_model import load_model
from shared.engine.runner import TorchRunner
from tests.support.replay import replay
from tests.support.stepper import Row, finish, greedy, step
from tests.support.tiny_case import BLOCK_TOKENS, KINDS, SHAPES, Case


@pytest.fixture(scope="module", params=[(shape, kind) for kind in KINDS for shape in SHAPES])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    shape, kind = request.param
    return Case(tmp_path_factory.mktemp("model"), SHAPES[shape], kind)


@pytest.fixture(scope="module", params=KINDS)
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("model"), SHAPES["groups"], request.param)


@pytest.mark.parametrize("chunk", [1, 3, BLOCK_TOKENS, 33, 100])
def test_any_chunk_gives_the_tokens_of_the_reference(case: Case, chunk: int) -> None:
    prompt = case.prompt(75)
    assert finish(case.runner(), [Row(1, prompt, range(40))], 20, chunk) == [case.answer(prompt[:75], 20)]


@pytest.mark.parametrize("length", [1, 2, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 40])
def test_prompt_lengths_around_a_block(one: Case, length: int) -> None:
    prompt = one.prompt(length)
    assert finish(one.runner(), [Row(1, prompt.copy(), range(40))], 9) == [one.answer(prompt, 9)]


def test_a_batch_gives_what_each_gives_alone(case: Case) -> None:
    prompts = [case.prompt(length) for length in (3, 70, 20, 1, 33, 300)]
    runner = case.runner(300)
    rows = [Row(seq, prompt.copy(), range(seq * 32, seq * 32 + 32)) for seq, prompt in enumerate(prompts)]
    rows[5].blocks = range(200, 300)
    assert finish(runner, rows, 12, 50) == [case.answer(prompt, 12) for prompt in prompts]


def test_random_mixes_of_extends_and_decodes(one: Case) -> None:
    choose = random.Random(4)
    prompts = [one.prompt(choose.randrange(1, 90)) for _ in range(7)]
    runner = one.runner(7 * 30)
    rows = [Row(seq, prompt.copy(), range(seq * 30, seq * 30 + 30)) for seq, prompt in enumerate(prompts)]
    while any(len(row.drawn) < 15 for row in rows):
        step(runner, [(row, choose.choice((1, 1, 2, 9, 40))) for row in choose.sample(rows, 3)])
    for row, prompt in zip(rows, prompts, strict=True):
        drawn = [each.id for each in row.drawn[:15]]
        assert drawn == one.answer(prompt, 15)


def test_sequences_come_and_go_in_any_order(one: Case) -> None:
    """Lanes of ended sequences are used again, beside longer and shorter neighbours."""
    choose = random.Random(5)
    runner = one.runner(400)
    live: list[tuple[Row, list[int]]] = []
    for seq in range(25):
        prompt = one.prompt(choose.randrange(1, 40))
        free = [at for at in range(10) if all(row.blocks[0] != at * 40 for row, _ in live)]
        live.append((Row(seq, prompt.copy(), range(free[0] * 40, free[0] * 40 + 40)), prompt))
        for _ in range(4):
            step(runner, [(row, 16) for row, _ in live])
        if len(live) > 5:
            row, prompt = live.pop(choose.randrange(len(live)))
            assert [each.id for each in row.drawn] == one.answer(prompt, len(row.drawn))
            step(runner, [(live[0][0], 1)], ended=[row.seq])


def test_sampling_is_replayed_by_the_reference(one: Case) -> None:
    runner = one.runner()
    settings: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.8, "top_k": 5, "seed": 1 << 40},
        {"temperature": 1.3, "top_p": 0.9, "min_p": 0.02, "seed": 8, "choice": 2},
        {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"temperature": 0.0, "logit_bias": {5: 4.0}, "min_tokens": 9, "stop_ids": (1, 2, 3)},
    ]
    prompts = [one.prompt(10 + 7 * at) for at in range(len(settings))]
    rows = [
        Row(
            seq,
            prompt.copy(),
            range(seq * 24, seq * 24 + 24),
            SamplingParams(**({"max_pos": 999, "seed": 0} | each)),
        )
        for seq, (prompt, each) in enumerate(zip(prompts, settings, strict=True))
    ]
    for prompt, output, each in zip(prompts, finish(runner, rows, 40, 8), settings, strict=True):
        result = replay(one.reference, prompt, output, each)
        assert result.ok, result


def test_blocks_that_crossed_as_bytes_continue_elsewhere(case: Case) -> None:
    """A second runner gets the full blocks' bytes at other places and ids for the rest."""
    prompt = case.prompt(43)
    first, second = case.runner(), case.runner()
    row = Row(1, prompt.copy(), range(20))
    finish(first, [row], 9)
    known = prompt + [each.id for each in row.drawn]
    full = (len(known) - 1) // BLOCK_TOKENS
    there = [100 - index for index in range(25)]
    for index in range(full):
        second.view(there[index])[:] = bytes(first.view(row.blocks[index]))
        second.landed(there[index])
    moved = Row(7, known.copy(), there, done=full * BLOCK_TOKENS, prompt_len=len(prompt))
    assert finish(second, [moved], 15) == [case.answer(known, 15)]


def test_a_prefix_is_shared_by_a_later_sequence(one: Case) -> None:
    prompt = one.prompt(24)
    runner = one.runner()
    finish(runner, [Row(1, prompt.copy(), range(10))], 2)
    shared = [bytes(runner.view(block)) for block in range(6)]
    longer = prompt + one.prompt(5)
    later = Row(2, longer.copy(), [*range(6), *range(30, 40)], done=24)
    assert finish(runner, [later], 8) == [one.answer(longer, 8)]
    assert [bytes(runner.view(block)) for block in range(6)] == shared


def test_the_last_block_may_be_computed_again_elsewhere(one: Case) -> None:
    """A prompt whose KV is complete is drawn from by computing its last block into a private one."""
    prompt = one.prompt(24)
    runner = one.runner()
    finish(runner, [Row(1, prompt.copy(), range(10))], 1)
    again = Row(2, prompt.copy(), [*range(5), *range(50, 60)], done=20)
    assert finish(runner, [again], 8) == [one.answer(prompt, 8)]


def test_a_sequence_may_go_back(one: Case) -> None:
    """What was computed beyond `start` is forgotten: other ids may follow."""
    prompt, other = one.prompt(21), one.prompt(9)
    runner = one.runner()
    finish(runner, [Row(1, prompt.copy(), range(10))], 3)
    changed = prompt[:13] + other
    assert finish(runner, [Row(1, changed.copy(), range(30), done=13)], 8) == [one.answer(changed, 8)]


def test_idle_contexts_are_dropped_and_read_again(one: Case) -> None:
    runner = one.runner(400, context_bytes=0)
    prompts = [one.prompt(30 + at) for at in range(5)]
    rows = [Row(seq, prompt.copy(), range(seq * 40, seq * 40 + 40)) for seq, prompt in enumerate(prompts)]
    for row in rows:
        step(runner, [(row, 17)])
    for _ in range(BLOCK_TOKENS + 1):
        for row in rows:  # decoding ones are in the pool only up to their last full block
            step(runner, [(row, 99)])
    assert finish(runner, rows, 10) == [one.answer(prompt, 10) for prompt in prompts]


def test_logprobs_are_those_of_the_reference(one: Case) -> None:
    prompt = one.prompt(30)
    row = Row(1, prompt.copy(), range(10), greedy(logprobs=4))
    finish(one.runner(), [row], 1)
    raw = torch.log_softmax(one.reference.logits(prompt)[-1].double(), 0)
    assert row.drawn[0].logprob == pytest.approx(float(raw.max()), abs=1e-4)
    values, tokens = raw.topk(4)
    assert [token for token, _ in row.drawn[0].top] == tokens.tolist()
    assert [value for _, value in row.drawn[0].top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("chunk", [7, 100])
def test_a_prompt_is_scored_while_it_is_computed(one: Case, chunk: int) -> None:
    prompt, other = one.prompt(40), one.prompt(9)
    raw = torch.log_softmax(one.reference.logits(prompt).double(), -1)
    runner = one.runner()
    for start in range(0, 40, chunk):
        end = min(start + chunk, 40)
        item = WorkItem(
            1, start, tuple(prompt[start:end]), tuple(range(10)), None, tuple(prompt[start + 1 : end + 1]), 2
        )
        beside = WorkItem(2 + start, 0, tuple(other), (20, 21, 22))
        result = runner.execute(StepPlan((beside, item)))
        scores = result.scores[1]
        assert set(result.scores) == {1}
        assert [score.id for score in scores] == prompt[start + 1 : end + 1]
        for at, score in enumerate(scores, start):
            assert score.logprob == pytest.approx(float(raw[at, prompt[at + 1]]), abs=1e-4)
            assert [token for token, _ in score.top] == raw[at].topk(2).indices.tolist()


def test_warm_up_leaves_pool_and_sequences_alone(one: Case) -> None:
    runner = one.runner(4)
    runner.view(0)[:4] = b"\x01\x02\x03\x04"
    runner.warm_up()
    assert bytes(runner.view(0)[:4]) == b"\x01\x02\x03\x04"
    assert not any(any(runner.view(block)) for block in range(1, 4))


def test_full_blocks_are_written_once_and_partial_ones_touch_no_other(one: Case) -> None:
    runner = one.runner(16)
    row = Row(1, one.prompt(9), [3, 5, 7, 9])
    step(runner, [(row, 9)])
    before = {block: bytes(runner.view(block)) for block in range(16)}
    step(runner, [(row, 1)])
    after = {block: bytes(runner.view(block)) for block in range(16)}
    assert [block for block in range(16) if before[block] != after[block]] == []
    for _ in range(2):
        step(runner, [(row, 1)])
    final = {block: bytes(runner.view(block)) for block in range(16)}
    assert [block for block in range(16) if before[block] != final[block]] == [7]


def test_bfloat16_follows_float32(one: Case) -> None:
    prompt = one.prompt(60)
    model = load_model(one.directory, "bfloat16", library=one.library)
    runner = TorchRunner(model, kv_blocks=100, block_tokens=BLOCK_TOKENS)
    assert "bfloat16" in runner.layout.describe()
    exact = torch.log_softmax(one.reference.logits(prompt)[-1], 0)
    spread = []
    for seq, chunk in enumerate((60, 7, 1)):
        row = Row(seq, prompt.copy(), range(30), greedy(logprobs=runner.vocab))
        while not row.drawn:
            step(runner, [(row, chunk)])
        scores = torch.tensor([score for _, score in sorted(row.drawn[0].top)])
        spread.append(float((scores - exact).abs().mean()))
    assert max(spread) < 0.3


def test_many_rows_in_bfloat16(one: Case) -> None:
    """Above the count from which a step may be computed in float32 over bfloat16 weights and KV."""
    prompts = [one.prompt(300), one.prompt(8)]
    runner = TorchRunner(
        load_model(one.directory, "bfloat16", library=one.library), kv_blocks=200, block_tokens=BLOCK_TOKENS
    )
    short = Row(2, prompts[1].copy(), range(100, 120))
    step(runner, [(short, 8)])
    rows = [Row(1, prompts[0].copy(), range(90), greedy(logprobs=runner.vocab)), short]
    step(runner, [(row, 300) for row in rows])
    exact = torch.log_softmax(one.reference.logits(prompts[0])[-1], 0)
    scores = torch.tensor([score for _, score in sorted(rows[0].drawn[0].top)])
    assert float((scores - exact).abs().mean()) < 0.3


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 60)), max_size=5), min_size=1, max_size=12)
)
def test_any_schedule_gives_the_same_tokens(one: Case, schedule: list[list[tuple[int, int]]]) -> None:
    """Splits, batches, parkings (a sequence that ends and comes back from its full blocks) in any order."""
    prompts = [one.prompt(length) for length in (1, 5, 16, 63, 130)]
    runner = one.runner(5 * 60)
    rows = [Row(seq, prompt.copy(), range(seq * 60, seq * 60 + 60)) for seq, prompt in enumerate(prompts)]
    number = len(rows)
    for wanted in schedule:
        chosen = dict(wanted)
        ended = []
        for at, count in chosen.items():
            if count % 7 == 0:  # park: only full blocks survive
                ended.append(rows[at].seq)
                rows[at].seq, number = number, number + 1
                rows[at].done -= rows[at].done % BLOCK_TOKENS
        step(runner, [(rows[at], count) for at, count in chosen.items()], ended)
    for row, prompt in zip(rows, prompts, strict=True):
        drawn = [each.id for each in row.drawn]
        assert drawn == one.answer(prompt, len(drawn))
