"""The torch references, through the wrappers as a CPU runs them, against answers that share no code."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kernels.block_copy import gather_blocks, scatter_blocks
from shared.kernels.extend_attention import extend_attention
from shared.kernels.kv_write import rotate_and_write_kv
from shared.kernels.rows import rms_norm, silu_mul
from shared.kernels.sampling import gumbel_argmax
from tests.unit.kernels.batches import error, make_batch, truth
from tests.unit.kernels.interpreted import cache_cases, row_cases

ON_A_CPU_TOO = [
    case
    for case in (*cache_cases.CASES, *row_cases.CASES)
    if case is not row_cases.noise_is_exact_where_draws_are_decided  # launches a kernel by itself
]


@pytest.mark.parametrize("case", ON_A_CPU_TOO, ids=lambda case: case.__name__)
def test_cases_of_the_kernels_hold_for_the_reference(case: object) -> None:
    assert callable(case)
    case()


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    block_tokens=st.sampled_from([1, 4, 16]),
    window=st.none() | st.integers(1, 50),
    softcap=st.none() | st.floats(1.0, 30.0),
    padding=st.integers(0, 2),
)
def test_extend_attention(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    block_tokens: int,
    window: int | None,
    softcap: float | None,
    padding: int,
) -> None:
    batch = make_batch(
        lengths,
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=24,
        block_tokens=block_tokens,
        padding_rows=padding,
    )
    out = extend_attention(*batch.arguments, batch.scale, window=window, softcap=softcap, out=batch.out)
    assert out is batch.out
    assert error(out, truth(batch, window, softcap)) < 3e-6


def test_extend_attention_in_float64_is_exact() -> None:
    batch = make_batch([(300, 270)], q_heads=2, kv_heads=1, head_dim=16, block_tokens=32, dtype=torch.float64)
    found = extend_attention(*batch.arguments, batch.scale)
    assert error(found, truth(batch)) < 1e-12


def test_any_split_into_extends_gives_the_same_rows() -> None:
    whole = make_batch([(0, 50)], q_heads=2, kv_heads=1, head_dim=16, block_tokens=8)
    expected = extend_attention(*whole.arguments, whole.scale)
    for first, last in ((0, 1), (1, 33), (33, 50)):
        part = extend_attention(
            whole.q[first:last],
            whole.k_cache,
            whole.v_cache,
            torch.tensor([0, last - first], dtype=torch.int32),
            torch.tensor([first], dtype=torch.int32),
            whole.block_tables,
            whole.scale,
        )
        assert (part - expected[first:last]).abs().max() < 1e-6


def attention_arguments() -> dict[str, object]:
    batch = make_batch([(5, 2), (0, 3)], q_heads=4, kv_heads=2, head_dim=16, block_tokens=4)
    names = ("q", "k_cache", "v_cache", "cu_seqlens", "start", "block_tables")
    return dict(zip(names, batch.arguments, strict=True)) | {"scale": 0.25}


ATTENTION_FAULTS = [
    ("q", lambda t: t[0], "q has shape"),
    ("q", lambda t: t.to(torch.int32), "q has dtype int32"),
    ("q", lambda t: t[:, :3], "3 heads, must be a multiple of the 2"),
    ("q", lambda t: t.transpose(0, 2).contiguous().transpose(0, 2), "q has stride"),
    ("k_cache", lambda t: t[..., :8], "k_cache has shape"),
    ("k_cache", lambda t: t.half(), "k_cache has dtype float16"),
    ("v_cache", lambda t: t[:1], "v_cache has shape"),
    ("v_cache", lambda t: t.transpose(2, 3).contiguous().transpose(2, 3), "v_cache has stride"),
    ("cu_seqlens", lambda t: t[:-1], "cu_seqlens has shape"),
    ("cu_seqlens", lambda t: t.long(), "cu_seqlens has dtype int64"),
    ("cu_seqlens", lambda t: t + 1, "cu_seqlens runs from 1"),
    ("cu_seqlens", lambda t: torch.tensor([0, 4, 2], dtype=torch.int32), "item 1 has -2 new"),
    ("start", lambda t: t.long(), "start has dtype int64"),
    ("start", lambda t: t - 1, "item 1 has 3 new and -1 cached"),
    ("start", lambda t: t + 100, "block_tables has room for"),
    ("block_tables", lambda t: t[:1], "block_tables has shape"),
    ("scale", lambda _: float("nan"), "scale is nan"),
    ("window", lambda _: 0, "window is 0"),
    ("softcap", lambda _: -1.0, "softcap is -1.0"),
    ("out", lambda _: torch.zeros(1, 4, 16), "out has shape"),
    ("out", lambda _: torch.zeros(5, 4, 16, dtype=torch.float64), "out has dtype float64"),
    ("start", lambda t: t.to("meta"), "start is on meta"),
]


@pytest.mark.parametrize(("name", "change", "message"), ATTENTION_FAULTS)
def test_extend_attention_names_the_wrong_argument(name: str, change: object, message: str) -> None:
    arguments = attention_arguments()
    assert callable(change)
    arguments[name] = change(arguments.get(name))
    with pytest.raises((ValueError, TypeError), match=message):
        extend_attention(**arguments)  # type: ignore[arg-type]


def write_arguments() -> dict[str, torch.Tensor]:
    return {
        "q": torch.zeros(3, 4, 16),
        "k": torch.zeros(3, 2, 16),
        "v": torch.zeros(3, 2, 16),
        "cos": torch.zeros(9, 8),
        "sin": torch.zeros(9, 8),
        "positions": torch.zeros(3, dtype=torch.int64),
        "slots": torch.zeros(3, dtype=torch.int64),
        "k_cache": torch.zeros(2, 2, 4, 16),
        "v_cache": torch.zeros(2, 2, 4, 16),
    }


WRITE_FAULTS = [
    ("q", torch.zeros(3, 4, 15), "must be even"),
    ("k", torch.zeros(2, 2, 16), "k has shape"),
    ("v", torch.zeros(3, 2, 16, dtype=torch.float16), "v has dtype"),
    ("cos", torch.zeros(9, 4), "cos has shape"),
    ("cos", torch.zeros(9, 8, dtype=torch.bfloat16), "cos has dtype"),
    ("sin", torch.zeros(8, 8), "sin has shape"),
    ("sin", torch.zeros(8, 9).t(), "sin has strides"),
    ("positions", torch.zeros(3), "positions has dtype"),
    ("slots", torch.zeros(4, dtype=torch.int64), "slots has shape"),
    ("k_cache", torch.zeros(2, 3, 4, 16), "k_cache has shape"),
    ("v_cache", torch.zeros(2, 2, 8, 16), "v_cache has shape"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRITE_FAULTS)
def test_rotate_and_write_names_the_wrong_argument(name: str, value: torch.Tensor, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        rotate_and_write_kv(**write_arguments() | {name: value})


def test_block_copy_names_the_wrong_argument() -> None:
    pool, ids = torch.zeros(4, 2, 3), torch.tensor([1, 2])
    with pytest.raises(TypeError, match="staging has dtype float16"):
        gather_blocks(pool, ids, torch.zeros(2, 2, 3, dtype=torch.float16))
    with pytest.raises(ValueError, match="staging has shape"):
        gather_blocks(pool, ids, torch.zeros(2, 3, 2))
    with pytest.raises(ValueError, match="staging holds 1 blocks, must hold the 2"):
        scatter_blocks(torch.zeros(1, 2, 3), ids, pool)
    with pytest.raises(TypeError, match="ids has dtype int32"):
        gather_blocks(pool, ids.int(), torch.zeros(2, 2, 3))
    with pytest.raises(ValueError, match="a block of pool has strides"):
        gather_blocks(pool.transpose(1, 2), ids, torch.zeros(2, 3, 2))


def test_row_kernels_name_the_wrong_argument() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match="weight has shape"):
        rms_norm(x, torch.ones(7), 1e-5)
    with pytest.raises(TypeError, match="residual has dtype"):
        rms_norm(x, torch.ones(8), 1e-5, x.half())
    with pytest.raises(ValueError, match="x has shape"):
        rms_norm(x[0], torch.ones(8), 1e-5)
    with pytest.raises(ValueError, match="must be even"):
        silu_mul(torch.zeros(2, 7))


def test_sampling_names_the_wrong_argument() -> None:
    logits = torch.zeros(2, 8)
    good = {
        "temperature": torch.zeros(2),
        "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(2, dtype=torch.int64),
        "choices": torch.zeros(2, dtype=torch.int32),
    }
    for name, value in good.items():
        with pytest.raises(TypeError, match=f"{name} has dtype"):
            gumbel_argmax(logits, **good | {name: value.to(torch.float16)})
        with pytest.raises(ValueError, match=f"{name} has shape"):
            gumbel_argmax(logits, **good | {name: value[:1]})
    with pytest.raises(ValueError, match="empty vocabulary"):
        gumbel_argmax(logits[:, :0], **good)


def test_poison_of_unused_slots_would_show() -> None:
    """The batches do hold NaN where no item looks, or the tests that pass over them prove nothing."""
    batch = make_batch([(5, 2)], q_heads=1, kv_heads=1, head_dim=16, block_tokens=4)
    assert bool(batch.k_cache.isnan().any())
    assert bool(batch.out.isnan().all())
    batch.start += 1
    assert bool(extend_attention(*batch.arguments, batch.scale).isnan().any())
