"""RMS norm, SiLU-mul and the sampler under the interpreter."""

from __future__ import annotations

import torch

from shared.kernels.philox import gumbel, philox_words
from shared.kernels.reference import gumbel_argmax as reference_argmax
from shared.kernels.rows import rms_norm, silu_mul
from shared.kernels.sampling import gumbel_argmax
from tests.unit.kernels.batches import NAN


def check_norm(
    shape: tuple[int, ...],
    *,
    residual: bool = False,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 2e-6,
) -> None:
    torch.manual_seed(shape[-1])
    width = shape[-1]
    # slices of wider rows that are NaN elsewhere
    wide = torch.full((*shape[:-1], width + 16), NAN, dtype=dtype)
    x = wide[..., 5 : 5 + width]
    x.copy_(torch.randn(shape) * 3)
    weight = torch.randn(width).to(dtype)
    total = x.double()
    kept = None
    if residual:
        kept = torch.randn(shape).to(dtype)
        total = kept.double() + total
    out = rms_norm(x, weight, 1e-5, kept)
    assert out.dtype == dtype
    assert out.shape == shape
    if kept is not None:
        # the interpreter truncates to bfloat16 where a device rounds, so equality is too much to ask
        assert ((kept.double() - total).abs() / (1 + total.abs())).max() < tolerance
        total = kept.double()
    expected = total * weight.double() / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert ((out.double() - expected).abs() / (1 + expected.abs())).max() < tolerance


def norm_odd_width() -> None:
    check_norm((3, 37))


def norm_one_row() -> None:
    check_norm((1, 576))


def norm_wide_rows_with_residual() -> None:
    check_norm((2, 1500), residual=True)


def norm_many_narrow_rows_with_residual() -> None:
    check_norm((37, 64), residual=True)


def norm_per_head() -> None:
    check_norm((3, 5, 64))


def norm_bfloat16() -> None:
    check_norm((3, 96), residual=True, dtype=torch.bfloat16, tolerance=1.6e-2)


def norm_empty() -> None:
    assert rms_norm(torch.empty(0, 64), torch.ones(64), 1e-5).shape == (0, 64)


def norm_of_zeros() -> None:
    assert torch.equal(rms_norm(torch.zeros(1, 64), torch.ones(64), 1e-5), torch.zeros(1, 64))


def check_silu(rows: int, width: int, dtype: torch.dtype = torch.float32, tolerance: float = 2e-6) -> None:
    torch.manual_seed(width)
    wide = torch.full((rows, 2 * width + 8), NAN, dtype=dtype)
    gate_up = wide[:, 3 : 3 + 2 * width]
    gate_up.copy_(torch.randn(rows, 2 * width) * 4)
    gate, up = gate_up.double().chunk(2, -1)
    expected = gate * torch.sigmoid(gate) * up
    found = silu_mul(gate_up)
    assert found.dtype == dtype
    assert ((found.double() - expected).abs() / (1 + expected.abs())).max() < tolerance


def silu_odd_width() -> None:
    check_silu(3, 77)


def silu_over_chunks() -> None:
    check_silu(2, 1100)


def silu_half_types() -> None:
    check_silu(1, 64, torch.bfloat16, 8e-3)
    check_silu(1, 64, torch.float16, 2e-3)


def silu_empty() -> None:
    assert silu_mul(torch.empty(0, 64)).shape == (0, 32)


def draw_arguments(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    positions = torch.randint(0, 2**40, (rows,), generator=generator)
    choices = torch.randint(0, 2**31 - 1, (rows,), generator=generator, dtype=torch.int32)
    return seeds, positions, choices


def draws_equal_the_reference() -> None:
    logits = torch.randn(12, 2500) * 2
    logits[:, 100:300] = float("-inf")
    temperature = torch.linspace(0.1, 3, 12)
    arguments = draw_arguments(12)
    found = gumbel_argmax(logits, temperature, *arguments)
    assert torch.equal(found, reference_argmax(logits, temperature, *arguments))
    assert len(set(found.tolist())) > 6


def flat_logits_show_every_integer() -> None:
    """With equal logits the draw is the largest Philox word itself: one wrong bit moves it."""
    arguments = draw_arguments(24)
    words = philox_words(*arguments, torch.arange(1500))
    found = gumbel_argmax(torch.zeros(24, 1500), torch.ones(24), *arguments)
    assert torch.equal(found, words.argmax(1))


def draws_with_strided_half_logits() -> None:
    logits = torch.full((4, 700), NAN, dtype=torch.bfloat16)[:, 20:-20]
    logits.copy_(torch.randn(4, 660))
    arguments = draw_arguments(4)
    found = gumbel_argmax(logits, torch.ones(4), *arguments)
    assert torch.equal(found, reference_argmax(logits, torch.ones(4), *arguments))


def greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(3, 2100)
    logits[0, [7, 1200, 2099]] = 5.0
    logits[1, 2099] = 1.0
    found = gumbel_argmax(logits, torch.zeros(3), *draw_arguments(3))
    assert found.tolist() == [7, 2099, 0]


def a_nan_or_nothing_kept_gives_minus_one() -> None:
    logits = torch.zeros(5, 1100)
    logits[0, 1050] = NAN
    logits[1] = float("-inf")
    logits[2] = float("-inf")
    logits[2, 3] = -1e30
    logits[3, 9] = float("inf")
    for temperature in (torch.zeros(5), torch.ones(5)):
        found = gumbel_argmax(logits, temperature, *draw_arguments(5))
        assert found[:4].tolist() == [-1, -1, 3, 9]
        assert found[4] >= 0
        assert torch.equal(found, reference_argmax(logits, temperature, *draw_arguments(5)))


def noise_is_exact_where_draws_are_decided() -> None:
    """One kept id per row, so that its score is its noise; the words are the extremes of a long search and a
    spread.
    """
    from shared.kernels.jit.sampling import draw_chunk

    zero = torch.zeros(1, dtype=torch.int64)
    tried = 200_000
    position = torch.arange(tried)
    words = philox_words(zero.expand(tried), position, zero.expand(tried), zero)[:, 0]
    order = words.argsort()
    middle = (words - 2**31).abs().argsort()[:20]
    picked = torch.cat((order[:20], order[-20:], middle, order[::4000]))
    rows = len(picked)
    scores, ids = torch.full((rows, 1), NAN), torch.full((rows, 1), -7)
    draw_chunk[(rows, 1)](
        torch.zeros(rows, 1),
        torch.ones(rows),
        torch.zeros(rows, dtype=torch.int64),
        picked,
        torch.zeros(rows, dtype=torch.int32),
        scores,
        ids,
        1,
        1,
        BLOCK_VOCABULARY=16,
    )
    assert ids.tolist() == [[0]] * rows
    assert words[picked].max() > 2**32 - 2**17
    assert (scores[:, 0].double() - gumbel(words[picked])).abs().max() < 3e-6


CASES = (
    norm_odd_width,
    norm_one_row,
    norm_wide_rows_with_residual,
    norm_many_narrow_rows_with_residual,
    norm_per_head,
    norm_bfloat16,
    norm_empty,
    norm_of_zeros,
    silu_odd_width,
    silu_over_chunks,
    silu_half_types,
    silu_empty,
    draws_equal_the_reference,
    flat_logits_show_every_integer,
    draws_with_strided_half_logits,
    greedy_takes_the_lowest_of_equals,
    a_nan_or_nothing_kept_gives_minus_one,
    noise_is_exact_where_draws_are_decided,
)
