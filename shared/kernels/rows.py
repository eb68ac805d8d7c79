"""Row-wise kernels of a layer: RMS norm with an optional residual, and SiLU(gate) * up."""

from __future__ import annotations

import torch

from shared.kernels import checks, reference
from shared.kernels.launch import SILU, norm_shape, runs_kernels

MAX_WIDTH = 32768


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """x * weight / sqrt(mean(x^2) + eps) over the last dimension, computed in float32 and rounded once.

    x: [rows, width], or [tokens, heads, width] for a norm per head; dense last dimension. weight: [width].
    residual: x's shape; it becomes residual + x (rounded to its dtype), and the norm is that of the sum.
    Returns a new contiguous tensor of x's shape and dtype.
    """
    kernels = runs_kernels(x)
    checks.floats("x", x, kernels=kernels)
    if x.dim() not in (2, 3):
        raise ValueError(f"x has shape {list(x.shape)}, must be [rows, width] or [tokens, heads, width]")
    width = x.shape[-1]
    checks.shape("weight", weight, (width,))
    checks.dense_rows("x", x)
    checks.dense_rows("weight", weight)
    checks.same_device(x, weight=weight)
    if residual is not None:
        checks.shape("residual", residual, tuple(x.shape))
        checks.dtype("residual", residual, (x.dtype,))
        checks.dense_rows("residual", residual)
        checks.same_device(x, residual=residual)
    if not kernels:
        return reference.rms_norm(x, weight, eps, residual)
    if not 0 < width <= MAX_WIDTH:
        raise ValueError(f"x has width {width}, must be between 1 and {MAX_WIDTH}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.numel() // width
    if rows == 0:
        return out
    from shared.kernels.jit.rows import rms_norm as kernel

    block_rows, block_width, warps = norm_shape(width)
    inner, x_strides = _row_strides(x)
    residual_strides = _row_strides(residual)[1] if residual is not None else x_strides
    kernel[(-(-rows // block_rows),)](
        x,
        residual if residual is not None else x,
        weight,
        out,
        *x_strides,
        *residual_strides,
        rows,
        inner,
        width,
        eps,
        HAS_RESIDUAL=residual is not None,
        BLOCK_ROWS=block_rows,
        BLOCK_WIDTH=block_width,
        num_warps=warps,
    )
    return out


def _row_strides(x: torch.Tensor) -> tuple[int, tuple[int, int]]:
    """(rows of the inner dimension, strides of outer and inner)."""
    if x.dim() == 2:
        return 1, (x.stride(0), 0)
    return x.shape[1], (x.stride(0), x.stride(1))


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up in float32, rounded once.

    gate_up: [rows, 2 * width], gate first, dense last dimension. Returns a new contiguous [rows, width] of
        its dtype.
    """
    kernels = runs_kernels(gate_up)
    checks.shape("gate_up", gate_up, (None, None))
    checks.floats("gate_up", gate_up, kernels=kernels)
    checks.dense_rows("gate_up", gate_up)
    rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate_up has width {both}, must be even: gate and up side by side")
    if not kernels:
        return reference.silu_mul(gate_up)
    width = both // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    from shared.kernels.jit.rows import silu_mul as kernel

    kernel[(rows, -(-width // SILU.block))](
        gate_up, out, gate_up.stride(0), width, BLOCK_WIDTH=SILU.block, num_warps=SILU.warps
    )
    return out
