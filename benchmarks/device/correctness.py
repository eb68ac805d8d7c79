"""Each kernel on this device beside a float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.device.paged import Shape, pages
from benchmarks.report import Result, bounded
from shared.kernels import reference
from shared.kernels.block_copy import gather_blocks, scatter_blocks
from shared.kernels.extend_attention import extend_attention
from shared.kernels.kv_write import rotate_and_write_kv
from shared.kernels.philox import philox_words
from shared.kernels.rows import rms_norm, silu_mul
from shared.kernels.sampling import gumbel_argmax

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest absolute error over 1 + |expected|: float32 sums, and one rounding of the result."""


def check(device: torch.device, *, tiny: bool) -> list[Result]:
    """The largest error of each kernel and dtype, as a part of what is allowed."""
    torch.manual_seed(1)
    found = []
    for dtype, most in TOLERANCE.items():
        for name, error in _errors(device, dtype, tiny=tiny):
            kind = str(dtype).removeprefix("torch.")
            found.append(bounded(f"{name} {kind} error / allowed", [error / most], "x", 1.0, most=True))
    wrong = _copies(device) + _draws(device)
    found.append(bounded("copies and draws that differ", [float(wrong)], "", 0.0, most=True))
    return found


def _errors(device: torch.device, dtype: torch.dtype, *, tiny: bool) -> Iterator[tuple[str, float]]:
    sizes = [(3, 37, 1), (2, 70, 5)] if tiny else [(7, 1000, 1), (3, 3000, 17), (2, 700, 300), (1, 0, 900)]
    dims = (64,) if tiny else (64, 96, 128, 256)
    options: tuple[dict[str, float | int | None], ...] = ({}, {"window": 33}, {"softcap": 20.0})
    worst = 0.0
    for items, start, new in sizes:
        for head_dim in dims:
            shape = Shape(items, start, new, 8, 2, head_dim, 16, dtype)
            made = pages(shape, device)
            for option in options:
                out = _attention(made.arguments, option, extend_attention)
                wide = tuple(each.double() if each.is_floating_point() else each for each in made.arguments)
                worst = max(worst, _far(out, _attention(wide, option, _reference)))
    yield "attention", worst
    yield "norm", _norm(device, dtype)
    yield "silu", _silu(device, dtype)
    yield "rotate and write", _rotate(device, dtype)


def _attention(
    arguments: tuple[Tensor, ...], option: dict[str, float | int | None], run: Callable[..., Tensor]
) -> Tensor:
    return run(*arguments, arguments[0].shape[-1] ** -0.5, **option)


def _reference(
    q: Tensor, *rest: Tensor | float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    out = torch.empty_like(q)
    run: Any = reference.extend_attention
    run(q, *rest, window, softcap, out)
    return out


def _norm(device: torch.device, dtype: torch.dtype) -> float:
    rows = torch.randn(50, 1500, device=device).to(dtype)
    weight = torch.randn(1500, device=device).to(dtype)
    return _far(rms_norm(rows, weight, 1e-5), reference.rms_norm(rows.double(), weight.double(), 1e-5, None))


def _silu(device: torch.device, dtype: torch.dtype) -> float:
    both = torch.randn(50, 3000, device=device).to(dtype)
    return _far(silu_mul(both), reference.silu_mul(both.double()))


def _rotate(device: torch.device, dtype: torch.dtype) -> float:
    qkv = torch.randn(9, 12, 64, device=device).to(dtype)
    angles = torch.randn(40, 32, device=device)
    positions = torch.randperm(40, device=device)[:9]
    slots = torch.randperm(64, device=device)[:9]
    caches = [torch.zeros(4, 2, 16, 64, device=device, dtype=kind) for kind in (dtype, dtype, torch.double)]
    caches.append(caches[2].clone())
    wide = qkv.double()
    rotate_and_write_kv(
        qkv[:, :8], qkv[:, 8:10], qkv[:, 10:], angles.cos(), angles.sin(), positions, slots, *caches[:2]
    )
    cos, sin = angles.cos().double(), angles.sin().double()
    reference.rotate_and_write_kv(
        wide[:, :8], wide[:, 8:10], wide[:, 10:], cos, sin, positions, slots, *caches[2:]
    )
    pairs = [(qkv[:, :8], wide[:, :8]), (caches[0], caches[2]), (caches[1], caches[3])]
    return max(_far(one, other) for one, other in pairs)


def _copies(device: torch.device) -> bool:
    pool = torch.randint(-(2**31), 2**31, (40, 3, 50), device=device, dtype=torch.int32)
    ids = torch.randperm(40, device=device)[:11]
    staging = torch.zeros(12, 3, 50, device=device, dtype=torch.int32)
    gather_blocks(pool, ids, staging)
    back = torch.zeros_like(pool)
    scatter_blocks(staging, ids, back)
    return not (torch.equal(staging[:11], pool[ids]) and torch.equal(back[ids], pool[ids]))


def _draws(device: torch.device) -> bool:
    """Ids at temperature 1 over equal scores are those of the largest noise: the integers are the CPU's."""
    rows, vocab = 16, 5000
    seeds = torch.arange(rows) * (1 << 40) - 7
    positions, choices = torch.arange(rows) * 977, torch.arange(rows) % 3
    words = philox_words(seeds, positions, choices, torch.arange(vocab))
    drawn = gumbel_argmax(
        torch.zeros(rows, vocab, device=device),
        torch.ones(rows, device=device),
        seeds.to(device),
        positions.to(device),
        choices.to(torch.int32).to(device),
    )
    return not torch.equal(drawn.cpu(), words.argmax(1))


def _far(found: Tensor, expected: Tensor) -> float:
    if not torch.isfinite(found).all():
        return float("inf")
    return float(((found.double() - expected).abs() / (1 + expected.abs())).max())
