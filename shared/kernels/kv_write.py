"""Rotary embedding of new queries and keys, and the write of new keys and values to their slots, fused."""

from __future__ import annotations

import torch

from shared.kernels import checks, reference
from shared.kernels.launch import ROTATE, runs_kernels


def rotate_and_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> None:
    """Rotates q in place; writes rotated k and v to the caches. k and v themselves are left as they are.

    q: [tokens, q_heads, head_dim]; k, v: [tokens, kv_heads, head_dim], one float dtype, dense last dimension
        (slices of a fused projection are fine).
    cos, sin: [positions, head_dim / 2] float32, contiguous: the whole head is rotated, in the half-split
        layout.
    positions: [tokens] int64, absolute, below the number of rows of cos.
    slots: [tokens] int64, block * block_tokens + offset; a negative slot marks a padding token, which is
        skipped.
    k_cache, v_cache: [blocks, kv_heads, block_tokens, head_dim], q's dtype, dense last dimension.
    """
    kernels = runs_kernels(q)
    checks.shape("q", q, (None, None, None))
    checks.floats("q", q, kernels=kernels)
    tokens, q_heads, head_dim = q.shape
    if head_dim % 2:
        raise ValueError(f"q has head_dim {head_dim}, must be even to be rotated in halves")
    checks.shape("k", k, (tokens, None, head_dim))
    kv_heads = k.shape[1]
    checks.shape("v", v, tuple(k.shape))
    checks.shape("cos", cos, (None, head_dim // 2))
    checks.shape("sin", sin, tuple(cos.shape))
    checks.shape("positions", positions, (tokens,))
    checks.shape("slots", slots, (tokens,))
    checks.shape("k_cache", k_cache, (None, kv_heads, None, head_dim))
    checks.shape("v_cache", v_cache, tuple(k_cache.shape))
    for name, tensor in (("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        checks.dtype(name, tensor, (q.dtype,))
        checks.dense_rows(name, tensor)
    checks.dense_rows("q", q)
    for name, tensor in (("cos", cos), ("sin", sin)):
        checks.dtype(name, tensor, (torch.float32,) if kernels else (torch.float32, torch.float64))
        checks.contiguous(name, tensor)
    checks.dtype("positions", positions, (torch.int64,))
    checks.dtype("slots", slots, (torch.int64,))
    checks.contiguous("positions", positions)
    checks.contiguous("slots", slots)
    checks.same_device(
        q, k=k, v=v, cos=cos, sin=sin, positions=positions, slots=slots, k_cache=k_cache, v_cache=v_cache
    )
    if tokens == 0:
        return
    if not kernels:
        reference.rotate_and_write_kv(q, k, v, cos, sin, positions, slots, k_cache, v_cache)
        return
    from shared.kernels.jit.kv_write import rotate_and_write_kv as kernel

    half = head_dim // 2
    head_tiles = -(-q_heads // ROTATE.block) + -(-kv_heads // ROTATE.block)
    kernel[(tokens, head_tiles)](
        q,
        k,
        v,
        cos,
        sin,
        positions,
        slots,
        k_cache,
        v_cache,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        q_heads,
        kv_heads,
        HALF=half,
        BLOCK_HALF=1 << (half - 1).bit_length(),
        BLOCK_HEADS=ROTATE.block,
        BLOCK_TOKENS=k_cache.shape[2],
        num_warps=ROTATE.warps,
    )
