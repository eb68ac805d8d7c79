"""Kernels over rows of activations: RMS norm with an optional residual, and SiLU(gate) * up.

Arithmetic is float32, results are rounded once. Know nothing of launch settings or torch.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "inner", "eps"])
def rms_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    stride_x_outer: tl.int64,
    stride_x_inner: tl.int64,
    stride_residual_outer: tl.int64,
    stride_residual_inner: tl.int64,
    rows: tl.int32,
    inner: tl.int32,
    width: tl.int32,
    eps: tl.float32,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """Grid: (cdiv(rows, BLOCK_ROWS),). Row r is [r // inner, r % inner]; `out` is contiguous.

    With a residual: residual += x (rounded to its dtype), and the norm is that of the sum.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    outer = row // inner
    nested = row % inner
    x_rows = outer * stride_x_outer + nested * stride_x_inner
    x = tl.load(x_ptr + x_rows[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        ptrs = (
            residual_ptr
            + (outer * stride_residual_outer + nested * stride_residual_inner)[:, None]
            + column[None, :]
        )
        total = (x + tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(ptrs, total, mask=mask)
        x = total.to(tl.float32)
    variance = tl.sum(x * x, 1) / width
    scale = 1.0 / tl.sqrt_rn(variance + eps)
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    normed = x * scale[:, None] * weight[None, :]
    out_ptrs = out_ptr + row[:, None] * width + column[None, :]
    tl.store(out_ptrs, normed.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def silu_mul(
    gate_up_ptr,
    out_ptr,
    stride_gate_up_row: tl.int64,
    width: tl.int32,
    BLOCK_WIDTH: tl.constexpr,
):
    """Grid: (rows, cdiv(width, BLOCK_WIDTH)). A row of `gate_up` is gate then up, each `width`; `out` is
    contiguous.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    mask = column < width
    gate_ptrs = gate_up_ptr + row * stride_gate_up_row + column
    gate = tl.load(gate_ptrs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptrs + width, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=mask)
