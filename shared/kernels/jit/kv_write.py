"""Rotary position embedding fused with the write of new keys and values to their slots.

Knows nothing of launch settings or torch. Addresses are 64-bit.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def rotate(x_ptrs, cos, sin, mask, HALF: tl.constexpr):
    """Both rotated halves, float32, of rows whose halves are `HALF` apart (the half-split layout)."""
    first = tl.load(x_ptrs, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptrs + HALF, mask=mask, other=0.0).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit(do_not_specialize=["positions_ptr", "slots_ptr", "q_heads", "kv_heads"])
def rotate_and_write_kv(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    k_cache_ptr,
    v_cache_ptr,
    stride_q_token: tl.int64,
    stride_q_head: tl.int64,
    stride_k_token: tl.int64,
    stride_k_head: tl.int64,
    stride_v_token: tl.int64,
    stride_v_head: tl.int64,
    stride_k_cache_block: tl.int64,
    stride_k_cache_head: tl.int64,
    stride_k_cache_token: tl.int64,
    stride_v_cache_block: tl.int64,
    stride_v_cache_head: tl.int64,
    stride_v_cache_token: tl.int64,
    q_heads: tl.int32,
    kv_heads: tl.int32,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """Grid: (tokens, tiles of q heads + tiles of KV heads). q is rotated in place, k and v are only read.

    `cos` and `sin` are [positions, HALF] float32, contiguous. A slot is block * BLOCK_TOKENS + offset; a
    negative slot marks a padding token, of which nothing is read or written.
    """
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    position = tl.load(positions_ptr + token).to(tl.int64)
    half = tl.arange(0, BLOCK_HALF)
    half_mask = (half < HALF)[None, :]
    cos = tl.load(cos_ptr + position * HALF + half, mask=half < HALF, other=0.0)[None, :]
    sin = tl.load(sin_ptr + position * HALF + half, mask=half < HALF, other=0.0)[None, :]
    q_tiles = tl.cdiv(q_heads, BLOCK_HEADS)
    if tile < q_tiles:
        head = (tile * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)).to(tl.int64)
        mask = (head < q_heads)[:, None] & half_mask
        ptrs = q_ptr + token * stride_q_token + head[:, None] * stride_q_head + half[None, :]
        first, second = rotate(ptrs, cos, sin, mask, HALF)
        tl.store(ptrs, first.to(q_ptr.dtype.element_ty), mask=mask)
        tl.store(ptrs + HALF, second.to(q_ptr.dtype.element_ty), mask=mask)
    else:
        head = ((tile - q_tiles) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)).to(tl.int64)
        mask = (head < kv_heads)[:, None] & half_mask
        block = slot // BLOCK_TOKENS
        offset = slot % BLOCK_TOKENS
        ptrs = k_ptr + token * stride_k_token + head[:, None] * stride_k_head + half[None, :]
        first, second = rotate(ptrs, cos, sin, mask, HALF)
        row = block * stride_k_cache_block + offset * stride_k_cache_token
        ptrs = k_cache_ptr + row + head[:, None] * stride_k_cache_head + half[None, :]
        tl.store(ptrs, first.to(k_cache_ptr.dtype.element_ty), mask=mask)
        tl.store(ptrs + HALF, second.to(k_cache_ptr.dtype.element_ty), mask=mask)
        source = v_ptr + token * stride_v_token + head[:, None] * stride_v_head + half[None, :]
        row = block * stride_v_cache_block + offset * stride_v_cache_token
        ptrs = v_cache_ptr + row + head[:, None] * stride_v_cache_head + half[None, :]
        tl.store(ptrs, tl.load(source, mask=mask, other=0.0), mask=mask)
        tl.store(ptrs + HALF, tl.load(source + HALF, mask=mask, other=0.0), mask=mask)
