"""The synthetic runner must show every wrong block: each way of being wrong changes the next id."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from shared.engine.api import Draw, Drawn, SamplingParams, StepPlan, WorkItem
from shared.engine.synthetic import (
    SyntheticRunner,
    SyntheticTiming,
    draw_from,
    synthetic_layout,
    synthetic_next,
    synthetic_run,
)
from shared.errors import ConfigError
from shared.kv.layout import full_attention
from tests.support.engine_bench import BLOCK, VOCAB, prompt, sampling

PARAMS = sampling(99)
IDS = prompt(11)


def runner(**how: object) -> SyntheticRunner:
    return SyntheticRunner(synthetic_layout(BLOCK, 48), 8, vocab=VOCAB, **how)  # type: ignore[arg-type]


def compute(
    made: SyntheticRunner,
    blocks: tuple[int, ...],
    *cuts: int,
    ids: list[int] = IDS,
    params: SamplingParams = PARAMS,
) -> Drawn:
    """Compute ids in steps that end at `cuts` and at their end, then draw."""
    start = 0
    for end in (*cuts, len(ids)):
        draw = Draw((), end, 0, params) if end == len(ids) else None
        item = WorkItem(1, start, tuple(ids[start:end]), blocks, draw)
        [drawn] = made.execute(StepPlan((item,))).drawn
        start = end
    assert isinstance(drawn, Drawn)
    return drawn


@pytest.mark.parametrize("cuts", [(), (1,), (4,), (3, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)])
@pytest.mark.parametrize("blocks", [(0, 1, 2), (7, 0, 3)])
def test_the_next_id_depends_on_ids_alone(cuts: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    assert compute(runner(), blocks, *cuts).id == synthetic_next(IDS, PARAMS, VOCAB)


def test_a_batch_gives_what_each_gives_alone() -> None:
    made = runner()
    others = prompt(6, 3)
    items = (
        WorkItem(1, 0, tuple(IDS), (0, 1, 2), Draw((), len(IDS), 0, PARAMS)),
        WorkItem(2, 0, tuple(others), (3, 4), Draw((), len(others), 0, PARAMS)),
        WorkItem(3, 0, tuple(others), (5, 6)),
    )
    drawn = made.execute(StepPlan(items)).drawn
    assert drawn == (
        Drawn(synthetic_next(IDS, PARAMS, VOCAB)),
        Drawn(synthetic_next(others, PARAMS, VOCAB)),
        None,
    )


def next_id(spoil: Callable[[SyntheticRunner], tuple[int, ...] | None]) -> int:
    """Compute all but the last id, spoil the blocks, compute the last id and draw."""
    made = runner()
    item = WorkItem(1, 0, tuple(IDS[:-1]), (0, 1, 2))
    made.execute(StepPlan((item,)))
    blocks = spoil(made) or (0, 1, 2)
    last = WorkItem(1, len(IDS) - 1, (IDS[-1],), blocks, Draw((), len(IDS), 0, PARAMS))
    [drawn] = made.execute(StepPlan((last,))).drawn
    assert isinstance(drawn, Drawn)
    return drawn.id


def missing(made: SyntheticRunner) -> None:
    made.view(1)[:] = bytes(len(made.view(1)))


def stale(made: SyntheticRunner) -> None:
    """The block's previous content: the same place of another context."""
    compute(made, (4, 1, 5), ids=prompt(11, 1))


def foreign(_: SyntheticRunner) -> tuple[int, ...]:
    return (0, 6, 2)


def swapped(_: SyntheticRunner) -> tuple[int, ...]:
    return (1, 0, 2)


def shifted(made: SyntheticRunner) -> None:
    """The right ids at the wrong positions."""
    compute(made, (4, 5, 1), ids=[*IDS[:4], *IDS[:8]])


@pytest.mark.parametrize("spoil", [missing, stale, foreign, swapped, shifted])
def test_a_wrong_block_changes_the_next_id(
    spoil: Callable[[SyntheticRunner], tuple[int, ...] | None],
) -> None:
    assert next_id(lambda _: None) == synthetic_next(IDS, PARAMS, VOCAB)
    assert next_id(spoil) != synthetic_next(IDS, PARAMS, VOCAB)


def test_any_flipped_bit_of_the_context_changes_the_draw() -> None:
    right = synthetic_next(IDS, PARAMS, VOCAB)
    wide = dataclasses.replace(PARAMS, logprobs=0)
    made = runner()
    compute(made, (0, 1, 2))
    clean = compute(made, (0, 1, 2), params=wide)
    assert clean.id == right
    used = [(block, byte) for block in (0, 1) for byte in range(len(made.view(0)))]
    # Of the last block only the first slots of each plane hold tokens.
    used += [(2, plane * BLOCK * 16 + byte) for plane in range(3) for byte in range(2 * 16)]
    unchanged = 0
    for block, byte in used:
        made.view(block)[byte] ^= 1
        item = WorkItem(1, len(IDS) - 1, (IDS[-1],), (0, 1, 2), Draw((), len(IDS), 0, wide))
        [drawn] = made.execute(StepPlan((item,))).drawn
        made.view(block)[byte] ^= 1
        compute(made, (0, 1, 2))
        unchanged += drawn == clean
    # Ids are drawn of 211, logprobs of 256: an equal pair by chance is rare, an ignored byte is not.
    assert unchanged <= 1


def test_unused_slots_do_not_count() -> None:
    made = runner()
    for block in range(8):
        made.view(block)[:] = b"\xaa" * len(made.view(block))
    assert compute(made, (0, 1, 2), 5).id == synthetic_next(IDS, PARAMS, VOCAB)


def test_a_damaged_block_spoils_what_is_computed_after_it() -> None:
    made = runner()
    made.execute(StepPlan((WorkItem(1, 0, tuple(IDS[:8]), (0, 1)),)))
    made.view(1)[3 * 16] ^= 1  # the digest that the next token's starts from
    made.execute(StepPlan((WorkItem(1, 8, tuple(IDS[8:]), (0, 1, 2)),)))
    clean = runner()
    compute(clean, (0, 1, 2))
    assert bytes(made.view(2)) != bytes(clean.view(2))


def test_seed_choice_and_temperature() -> None:
    ids = {
        draw_from(b"x" * 16, dataclasses.replace(PARAMS, seed=seed, choice=choice), 10**9, 1, 0).id
        for seed in range(3)
        for choice in range(3)
    }
    assert len(ids) == 9
    greedy = {
        draw_from(b"x" * 16, dataclasses.replace(PARAMS, seed=seed, temperature=0.0), 10**9, 1, 0).id
        for seed in range(3)
    }
    assert len(greedy) == 1
    assert not greedy & ids


def test_stop_ids_cannot_be_drawn_before_min_tokens() -> None:
    first = synthetic_next(IDS, PARAMS, VOCAB, len(IDS))
    params = dataclasses.replace(PARAMS, stop_ids=(first,), min_tokens=1)
    assert synthetic_next(IDS, params, VOCAB, len(IDS)) != first
    assert synthetic_next(IDS, params, VOCAB, len(IDS) - 1) == first
    everything = dataclasses.replace(params, stop_ids=tuple(range(VOCAB)))
    assert synthetic_next(IDS, everything, VOCAB, len(IDS)) == first


def test_logit_bias_forces_and_forbids() -> None:
    first = synthetic_next(IDS, PARAMS, VOCAB)
    assert (
        synthetic_next(IDS, dataclasses.replace(PARAMS, logit_bias={9: 100.0, 5: 100.0, 3: 1.0}), VOCAB) == 5
    )
    assert synthetic_next(IDS, dataclasses.replace(PARAMS, logit_bias={first: -100.0}), VOCAB) != first
    assert synthetic_next(IDS, dataclasses.replace(PARAMS, logit_bias={first: -1.0}), VOCAB) == first


def test_logprobs() -> None:
    drawn = draw_from(b"x" * 16, dataclasses.replace(PARAMS, logprobs=3), VOCAB, 1, 0)
    assert drawn.top[0] == (drawn.id, drawn.logprob)
    assert len({id_ for id_, _ in drawn.top}) == 3
    assert all(logprob <= 0 for _, logprob in drawn.top)
    assert draw_from(b"x" * 16, dataclasses.replace(PARAMS, logprobs=0), VOCAB, 1, 0).top == ()
    assert draw_from(b"x" * 16, PARAMS, VOCAB, 1, 0) == Drawn(drawn.id)


def test_a_run_ends_with_the_stop_id_or_at_max_pos_or_at_the_limit() -> None:
    whole = synthetic_run(IDS, PARAMS, VOCAB, len(IDS))
    assert len(whole) == 99 - len(IDS)
    assert synthetic_run(IDS, PARAMS, VOCAB, len(IDS), 5) == whole[:5]
    stop = dataclasses.replace(PARAMS, stop_ids=(whole[3],))
    assert synthetic_run(IDS, stop, VOCAB, len(IDS)) == whole[: whole.index(whole[3]) + 1]
    assert synthetic_run(IDS, sampling(len(IDS)), VOCAB, len(IDS)) == []


def test_time_is_told_and_slept() -> None:
    slept: list[float] = []
    made = runner(timing=SyntheticTiming(step=1.0, token=0.5, context=0.25), sleep=slept.append)
    item = WorkItem(1, 0, tuple(IDS[:4]), (0,))
    assert made.execute(StepPlan((item,))).seconds == 1.0 + 4 * 0.5 + 4 * 0.25
    assert made.execute(StepPlan((), (1,))).seconds == 0.0
    assert slept == [4.0]
    assert runner().execute(StepPlan((item,))).seconds == 0.0


def test_views_are_disjoint_and_writable() -> None:
    made = runner()
    made.warm_up()
    made.view(1)[:] = b"\x01" * made.layout.block_bytes
    assert bytes(made.view(0)) == bytes(made.view(2)) == bytes(made.layout.block_bytes)
    assert len(made.view(0)) == made.layout.block_bytes == BLOCK * 48
    made.close()


def test_a_layout_that_cannot_hold_digests_is_refused() -> None:
    for head_dim in (1, 3):
        layout = full_attention(layers=1, kv_heads=1, head_dim=head_dim, block_tokens=BLOCK, dtype="float32")
        with pytest.raises(ConfigError, match="no multiple of 64"):
            SyntheticRunner(layout, 4)
