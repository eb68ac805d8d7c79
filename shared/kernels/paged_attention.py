"""Launches the attention kernel with a given tile and split count, and the combine step where keys are split.

Chooses nothing and checks nothing: `extend_attention` does. Only here is the attention kernel's argument list
    known.
"""

from __future__ import annotations

import torch

from shared.kernels.launch import COMBINE_WARPS, MIN_SPLIT_KEYS, Tile, interpreting, tile_width

WIDEST_WINDOW = 2**30
"""Longer windows see everything; the kernel counts in 32 bits."""


def row_tiles(tokens: int, items: int, group: int, tile: Tile) -> int:
    """Row tiles that cover any split of `tokens` over `items`; the lengths themselves stay on the device."""
    return tokens * group // tile.rows + items


def launch(
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
    tile: Tile,
    splits: int,
    min_split_keys: int = MIN_SPLIT_KEYS,
) -> None:
    """Writes `out`; shapes as in `extend_attention`. Partial results take tokens x heads x splits x head_dim
    floats.
    """
    from shared.kernels.jit.attention import combine_splits, paged_attention

    tokens, q_heads, head_dim = q.shape
    kv_heads, block_tokens = k_cache.shape[1], k_cache.shape[2]
    items = start.shape[0]
    group = q_heads // kv_heads
    width = tile_width(head_dim)
    clamped = min(window or 0, WIDEST_WINDOW)
    if splits > 1:
        partial = torch.empty((tokens, q_heads, splits, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((tokens, q_heads, splits), dtype=torch.float32, device=q.device)
    else:
        # Never touched, but typed and aligned as the real ones, so that one compiled kernel serves both.
        partial = lse = torch.empty(1, dtype=torch.float32, device=q.device)
    paged_attention[(row_tiles(tokens, items, group, tile), kv_heads, splits)](
        q,
        k_cache,
        v_cache,
        out,
        partial,
        lse,
        cu_seqlens,
        start,
        block_tables,
        *q.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        *out.stride()[:2],
        block_tables.stride(0),
        items,
        group,
        splits,
        min_split_keys,
        clamped,
        softcap or 0.0,
        scale,
        HEAD_DIM=head_dim,
        BLOCK_DIM=width,
        DIM_CHUNK=tile.dim_chunk,
        BLOCK_ROWS=tile.rows,
        BLOCK_KEYS=tile.keys,
        BLOCK_TOKENS=block_tokens,
        UPCAST=interpreting(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if splits > 1:
        combine_splits[(tokens, q_heads)](
            partial,
            lse,
            out,
            cu_seqlens,
            start,
            *out.stride()[:2],
            items,
            group,
            splits,
            min_split_keys,
            clamped,
            HEAD_DIM=head_dim,
            BLOCK_DIM=width,
            BLOCK_ROWS=tile.rows,
            BLOCK_KEYS=tile.keys,
            num_warps=COMBINE_WARPS,
        )
