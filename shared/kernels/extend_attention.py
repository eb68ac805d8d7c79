"""Attention of an extend step: n >= 0 new tokens of each work item over its paged keys and values.

Decode is n = 1, prefill a large n: one entry point. Checks the arguments, allocates the result and picks the
launch settings; a CPU tensor takes the torch reference. Knows nothing of sequences, schedulers or who owns
the blocks.
"""

from __future__ import annotations

import math

import torch

from shared.kernels import checks, paged_attention, reference
from shared.kernels.launch import attention_tile, device_kind, processors, runs_kernels, split_count


def extend_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cu_seqlens: torch.Tensor,
    start: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of each item's new tokens over its cached tokens and themselves.

    q: [tokens, q_heads, head_dim], float32, bfloat16 or float16 (float64 too on a CPU); head_dim <= 256.
    k_cache, v_cache: [blocks, kv_heads, block_tokens, head_dim], q's dtype, any strides with a dense last
        dimension. The new tokens' keys and values are already written.
    cu_seqlens: [items + 1] int32 from 0; item i owns rows cu_seqlens[i] .. cu_seqlens[i + 1] of q, perhaps
        none. Rows past the last bound are padding: neither read nor written.
    start: [items] int32, tokens cached before the new ones.
    block_tables: [items, max_blocks] int32, block ids that hold start + n tokens; entries past those are not
        read.
    window: tokens that a query sees, itself included; None sees all. softcap: cap * tanh(score / cap); None
        is off.
    out: where to write, q's shape and dtype. Returned.

    Accumulates in float32, and float32 inputs are multiplied in IEEE precision. Raises ValueError or
    TypeError naming the argument. Values on a GPU are not read back, so a wrong length or block id there is
    not found.
    """
    kernels = runs_kernels(q)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _check(q, k_cache, v_cache, cu_seqlens, start, block_tables, scale, window, softcap, out, kernels)
    tokens, q_heads, head_dim = q.shape
    items = start.shape[0]
    if tokens == 0 or items == 0:
        return out
    if not q.is_cuda:
        _check_values(cu_seqlens, start, block_tables, k_cache, tokens)
    if not kernels:
        reference.extend_attention(
            q, k_cache, v_cache, cu_seqlens, start, block_tables, scale, window, softcap, out
        )
        return out
    kv_heads, block_tokens = k_cache.shape[1], k_cache.shape[2]
    group = q_heads // kv_heads
    # The mean length picks the tile: any tile is right for any length, and lengths are only known on the
    # device.
    tile = attention_tile(device_kind(q.device), q.dtype, head_dim, -(-tokens // items) * group)
    programs = paged_attention.row_tiles(tokens, items, group, tile) * kv_heads
    splits = split_count(tile, programs, block_tables.shape[1] * block_tokens, processors(q.device))
    paged_attention.launch(
        q, k_cache, v_cache, cu_seqlens, start, block_tables, scale, window, softcap, out, tile, splits
    )
    return out


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cu_seqlens: torch.Tensor,
    start: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    out: torch.Tensor,
    kernels: bool,
) -> None:
    checks.shape("q", q, (None, None, None))
    checks.floats("q", q, kernels=kernels)
    checks.shape("k_cache", k_cache, (None, None, None, q.shape[2]))
    checks.shape("v_cache", v_cache, tuple(k_cache.shape))
    checks.shape("out", out, tuple(q.shape))
    checks.shape("start", start, (None,))
    items = start.shape[0]
    checks.shape("cu_seqlens", cu_seqlens, (items + 1,))
    checks.shape("block_tables", block_tables, (items, None))
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache), ("out", out)):
        checks.dtype(name, tensor, (q.dtype,))
        checks.dense_rows(name, tensor)
    checks.dense_rows("q", q)
    for name, tensor in (("cu_seqlens", cu_seqlens), ("start", start), ("block_tables", block_tables)):
        checks.dtype(name, tensor, (torch.int32,))
        checks.dense_rows(name, tensor)
    checks.same_device(
        q,
        k_cache=k_cache,
        v_cache=v_cache,
        out=out,
        cu_seqlens=cu_seqlens,
        start=start,
        block_tables=block_tables,
    )
    q_heads, kv_heads = q.shape[1], k_cache.shape[1]
    if kv_heads == 0 or q_heads % kv_heads:
        raise ValueError(f"q has {q_heads} heads, must be a multiple of the {kv_heads} KV heads")
    if kernels and q.shape[2] > 256:
        raise ValueError(f"q has head_dim {q.shape[2]}, must be at most 256")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}, must be finite")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}, must be at least 1, or None to see all tokens")
    if softcap is not None and not (0 < softcap < math.inf):
        raise ValueError(f"softcap is {softcap}, must be positive and finite, or None to turn it off")


def _check_values(
    cu_seqlens: torch.Tensor,
    start: torch.Tensor,
    block_tables: torch.Tensor,
    k_cache: torch.Tensor,
    tokens: int,
) -> None:
    """What the reference would read out of place; only where the values are at hand."""
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] > tokens:
        raise ValueError(
            f"cu_seqlens runs from {bounds[0]} to {bounds[-1]}, must run from 0 to at most {tokens}"
        )
    room = block_tables.shape[1] * k_cache.shape[2]
    for item, cached in enumerate(start.tolist()):
        new = bounds[item + 1] - bounds[item]
        if new < 0 or cached < 0:
            raise ValueError(f"item {item} has {new} new and {cached} cached tokens, must be at least 0")
        if cached + new > room:
            raise ValueError(
                f"item {item} has {cached} + {new} tokens, but block_tables has room for {room}: widen it"
            )
