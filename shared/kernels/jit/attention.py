"""Attention of new tokens over paged keys and values: one kernel for every number of query rows, and its
combine step.

The query rows of one KV head are (token, head of its group), token-major. A program owns `BLOCK_ROWS` rows of
one work item and one split of the keys they may see. Keys that every row sees run without a mask; the causal
edge and the window's edge run masked; both are merged by the running log-sum-exp. With one split the program
writes the result, with more it writes a partial result and its log-sum-exp, which `combine_splits` merges.

Knows nothing of launch settings, devices or torch. Addresses are 64-bit.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def item_of_tile(cu_seqlens_ptr, num_items, tile, group, BLOCK_ROWS: tl.constexpr):
    """The item that owns a row tile. Item i's tiles start at cu_seqlens[i] * group // BLOCK_ROWS + i."""
    left = 0
    right = num_items
    while left < right:
        middle = (left + right) // 2
        first = tl.load(cu_seqlens_ptr + middle) * group // BLOCK_ROWS + middle
        if first <= tile:
            left = middle + 1
        else:
            right = middle
    return left - 1


@triton.jit
def item_of_token(cu_seqlens_ptr, num_items, token):
    """The last item whose first token is not after `token`."""
    left = 0
    right = num_items
    while left < right:
        middle = (left + right) // 2
        if tl.load(cu_seqlens_ptr + middle) <= token:
            left = middle + 1
        else:
            right = middle
    return left - 1


@triton.jit
def key_range(start, row0, rows, group, window, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr):
    """What the rows of one tile see: (first, end) of all keys, (full_first, full_end) of those seen by every
    row.

    All but `end` are multiples of BLOCK_KEYS; the full range may be empty.
    """
    first_token = row0 // group
    last_token = (tl.minimum(row0 + BLOCK_ROWS, rows) - 1) // group
    end = start + last_token + 1
    full_end = (start + first_token + 1) // BLOCK_KEYS * BLOCK_KEYS
    first = 0
    full_first = 0
    if window > 0:
        first = tl.maximum(start + first_token + 1 - window, 0) // BLOCK_KEYS * BLOCK_KEYS
        full_first = tl.cdiv(tl.maximum(end - window, 0), BLOCK_KEYS) * BLOCK_KEYS
    full_first = tl.minimum(full_first, tl.cdiv(end, BLOCK_KEYS) * BLOCK_KEYS)
    full_end = tl.maximum(full_end, full_first)
    return first, end, full_first, full_end


@triton.jit
def keys_per_split(first, end, num_splits, min_split_keys, BLOCK_KEYS: tl.constexpr):
    """Keys of each split of [first, end): a multiple of BLOCK_KEYS, so that short contexts use few splits."""
    keys = tl.maximum(tl.cdiv(end - first, num_splits), min_split_keys)
    return tl.cdiv(keys, BLOCK_KEYS) * BLOCK_KEYS


@triton.jit
def load_tile(rows, present, dims, MASKED: tl.constexpr, NARROW: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Rows of keys or values; keys that are not present and dimensions past the head's are 0."""
    ptrs = rows[:, None] + dims[None, :]
    if MASKED and NARROW:
        tile = tl.load(ptrs, mask=present[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif MASKED:
        tile = tl.load(ptrs, mask=present[:, None], other=0.0)
    elif NARROW:
        tile = tl.load(ptrs, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def base2_scores(products, scale, softcap):
    """Scaled, perhaps capped scores times log2(e), so that exp2 serves for exp."""
    if softcap > 0.0:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), in base 2
        tanh = 1.0 - 2.0 / (tl.exp2(products * (scale * 2.0 * LOG2_E / softcap)) + 1.0)
        scores = tanh * (softcap * LOG2_E)
    else:
        scores = products * (scale * LOG2_E)
    return scores


@triton.jit
def attend_tile(
    acc,
    row_max,
    row_sum,
    q,
    q_ptrs,
    row_mask,
    row_position,
    column,
    end,
    k_ptr,
    v_ptr,
    table_ptr,
    stride_k_block,
    stride_k_token,
    stride_v_block,
    stride_v_token,
    scale,
    window,
    softcap,
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    DIM_CHUNK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One step of the running softmax over the keys [column, column + BLOCK_KEYS)."""
    NARROW: tl.constexpr = HEAD_DIM < BLOCK_DIM
    columns = column + tl.arange(0, BLOCK_KEYS)
    present = columns < end
    if MASKED:
        blocks = tl.load(table_ptr + columns // BLOCK_TOKENS, mask=present, other=0).to(tl.int64)
    else:
        blocks = tl.load(table_ptr + columns // BLOCK_TOKENS).to(tl.int64)
    slots = (columns % BLOCK_TOKENS).to(tl.int64)
    k_rows = k_ptr + blocks * stride_k_block + slots * stride_k_token
    v_rows = v_ptr + blocks * stride_v_block + slots * stride_v_token

    scores = tl.zeros([BLOCK_ROWS, BLOCK_KEYS], tl.float32)
    for chunk in tl.static_range(0, BLOCK_DIM, DIM_CHUNK):
        dims = chunk + tl.arange(0, DIM_CHUNK)
        k = load_tile(k_rows, present, dims, MASKED, NARROW, HEAD_DIM)
        if DIM_CHUNK == BLOCK_DIM:
            part = q
        else:
            part = tl.load(q_ptrs + chunk, mask=row_mask[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            part = part.to(tl.float32)
        scores = tl.dot(part, tl.trans(k), scores, input_precision="ieee")

    scores = base2_scores(scores, scale, softcap)
    if MASKED:
        seen = columns[None, :] <= row_position[:, None]
        if window > 0:
            seen = seen & (columns[None, :] > row_position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))

    new_max = tl.maximum(row_max, tl.max(scores, 1))
    if MASKED:
        # A row that has seen no key yet: exp2(-inf - 0) = 0, never exp2(-inf + inf).
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
    else:
        pivot = new_max
    weights = tl.exp2(scores - pivot[:, None])
    rescale = tl.exp2(row_max - pivot)
    row_sum = row_sum * rescale + tl.sum(weights, 1)
    acc = acc * rescale[:, None]

    v = load_tile(v_rows, present, tl.arange(0, BLOCK_DIM), MASKED, NARROW, HEAD_DIM)
    weights = weights.to(v.dtype)
    if UPCAST:
        weights = weights.to(tl.float32)
        v = v.to(tl.float32)
    acc = tl.dot(weights, v, acc, input_precision="ieee")
    return acc, new_max, row_sum


@triton.jit(
    do_not_specialize=[
        "cu_seqlens_ptr",
        "start_ptr",
        "block_tables_ptr",
        "stride_table_item",
        "num_items",
        "group",
        "num_splits",
        "min_split_keys",
        "window",
        "softcap",
        "scale",
    ]
)
def paged_attention(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    cu_seqlens_ptr,
    start_ptr,
    block_tables_ptr,
    stride_q_token: tl.int64,
    stride_q_head: tl.int64,
    stride_k_block: tl.int64,
    stride_k_head: tl.int64,
    stride_k_token: tl.int64,
    stride_v_block: tl.int64,
    stride_v_head: tl.int64,
    stride_v_token: tl.int64,
    stride_out_token: tl.int64,
    stride_out_head: tl.int64,
    stride_table_item: tl.int64,
    num_items: tl.int32,
    group: tl.int32,
    num_splits: tl.int32,
    min_split_keys: tl.int32,
    window: tl.int32,
    softcap: tl.float32,
    scale: tl.float32,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    DIM_CHUNK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Grid: (row tiles, KV heads, splits). `window` and `softcap` are off at 0.

    `partial` is [tokens, q heads, splits, HEAD_DIM] float32 and `lse` [tokens, q heads, splits] float32 in
    base 2; neither is touched with one split.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    item = item_of_tile(cu_seqlens_ptr, num_items, tile, group, BLOCK_ROWS)
    token0 = tl.load(cu_seqlens_ptr + item)
    rows = (tl.load(cu_seqlens_ptr + item + 1) - token0) * group
    row0 = (tile - (token0 * group // BLOCK_ROWS + item)) * BLOCK_ROWS
    if row0 >= rows:
        return
    start = tl.load(start_ptr + item)
    first, end, full_first, full_end = key_range(start, row0, rows, group, window, BLOCK_ROWS, BLOCK_KEYS)
    per_split = keys_per_split(first, end, num_splits, min_split_keys, BLOCK_KEYS)
    first += split * per_split
    if first >= end:
        return
    end = tl.minimum(first + per_split, end)
    # The full range inside this split; an empty one may stand anywhere in it, but on a tile's edge.
    full_first = tl.minimum(tl.maximum(full_first, first), tl.cdiv(end, BLOCK_KEYS) * BLOCK_KEYS)
    full_end = tl.maximum(tl.minimum(full_end, end), full_first)

    row = row0 + tl.arange(0, BLOCK_ROWS)
    row_mask = row < rows
    token = row // group
    row_position = start + token
    head = kv_head * group + row % group
    dims = tl.arange(0, BLOCK_DIM)
    token64 = (token0 + token).to(tl.int64)
    q_rows = q_ptr + token64 * stride_q_token + head.to(tl.int64) * stride_q_head
    q_ptrs = q_rows[:, None] + tl.arange(0, DIM_CHUNK)[None, :]
    if DIM_CHUNK == BLOCK_DIM:
        q = tl.load(q_ptrs, mask=row_mask[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    else:
        q = 0
    k_ptr += kv_head.to(tl.int64) * stride_k_head
    v_ptr += kv_head.to(tl.int64) * stride_v_head
    table_ptr = block_tables_ptr + item.to(tl.int64) * stride_table_item

    acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    row_max = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_ROWS], tl.float32)
    for column in tl.range(full_first, full_end, BLOCK_KEYS):
        acc, row_max, row_sum = attend_tile(
            acc, row_max, row_sum, q, q_ptrs, row_mask, row_position, column, end, k_ptr, v_ptr, table_ptr,
            stride_k_block, stride_k_token, stride_v_block, stride_v_token, scale, window, softcap,
            False, HEAD_DIM, BLOCK_DIM, DIM_CHUNK, BLOCK_ROWS, BLOCK_KEYS, BLOCK_TOKENS, UPCAST,
        )  # fmt: skip
    # The edges: the tiles before the full range, then those after it.
    before = tl.cdiv(full_first - first, BLOCK_KEYS)
    after = tl.cdiv(tl.maximum(end - full_end, 0), BLOCK_KEYS)
    for edge in tl.range(0, before + after):
        column = tl.where(edge < before, first + edge * BLOCK_KEYS, full_end + (edge - before) * BLOCK_KEYS)
        acc, row_max, row_sum = attend_tile(
            acc, row_max, row_sum, q, q_ptrs, row_mask, row_position, column, end, k_ptr, v_ptr, table_ptr,
            stride_k_block, stride_k_token, stride_v_block, stride_v_token, scale, window, softcap,
            True, HEAD_DIM, BLOCK_DIM, DIM_CHUNK, BLOCK_ROWS, BLOCK_KEYS, BLOCK_TOKENS, UPCAST,
        )  # fmt: skip

    # A row without a key in this split has sum 0: its result is 0 and its log-sum-exp -inf.
    row_sum = tl.where(row_sum > 0.0, row_sum, 1.0)
    result = acc / row_sum[:, None]
    store_mask = row_mask[:, None] & (dims < HEAD_DIM)[None, :]
    if num_splits > 1:
        q_heads = tl.num_programs(1) * group
        cell = (token64 * q_heads + head) * num_splits + split
        tl.store(partial_ptr + cell[:, None] * HEAD_DIM + dims[None, :], result, mask=store_mask)
        tl.store(lse_ptr + cell, row_max + tl.log2(row_sum), mask=row_mask)
    else:
        out_rows = out_ptr + token64 * stride_out_token + head.to(tl.int64) * stride_out_head
        tl.store(out_rows[:, None] + dims[None, :], result.to(out_ptr.dtype.element_ty), mask=store_mask)


@triton.jit(
    do_not_specialize=[
        "cu_seqlens_ptr",
        "start_ptr",
        "num_items",
        "group",
        "num_splits",
        "min_split_keys",
        "window",
    ]
)
def combine_splits(
    partial_ptr,
    lse_ptr,
    out_ptr,
    cu_seqlens_ptr,
    start_ptr,
    stride_out_token: tl.int64,
    stride_out_head: tl.int64,
    num_items: tl.int32,
    group: tl.int32,
    num_splits: tl.int32,
    min_split_keys: tl.int32,
    window: tl.int32,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Merges the splits of one (token, q head) by their log-sum-exp. Grid: (tokens, q heads).

    Visits only the splits that `paged_attention` wrote: both derive them from the same tile.
    """
    token = tl.program_id(0)
    head = tl.program_id(1)
    if token >= tl.load(cu_seqlens_ptr + num_items):
        return
    item = item_of_token(cu_seqlens_ptr, num_items, token)
    token0 = tl.load(cu_seqlens_ptr + item)
    rows = (tl.load(cu_seqlens_ptr + item + 1) - token0) * group
    row0 = ((token - token0) * group + head % group) // BLOCK_ROWS * BLOCK_ROWS
    start = tl.load(start_ptr + item)
    first, end, _, _ = key_range(start, row0, rows, group, window, BLOCK_ROWS, BLOCK_KEYS)
    used = tl.cdiv(end - first, keys_per_split(first, end, num_splits, min_split_keys, BLOCK_KEYS))

    dims = tl.arange(0, BLOCK_DIM)
    dim_mask = dims < HEAD_DIM
    cell = (token.to(tl.int64) * tl.num_programs(1) + head) * num_splits
    acc = tl.zeros([BLOCK_DIM], tl.float32)
    total = 0.0
    top = float("-inf")
    for split in tl.range(0, used):
        lse = tl.load(lse_ptr + cell + split)
        part = tl.load(partial_ptr + (cell + split) * HEAD_DIM + dims, mask=dim_mask, other=0.0)
        new_top = tl.maximum(top, lse)
        pivot = tl.where(new_top == float("-inf"), 0.0, new_top)
        rescale = tl.exp2(top - pivot)
        weight = tl.exp2(lse - pivot)
        acc = acc * rescale + part * weight
        total = total * rescale + weight
        top = new_top
    out_row = out_ptr + token.to(tl.int64) * stride_out_token + head.to(tl.int64) * stride_out_head
    tl.store(out_row + dims, (acc / total).to(out_ptr.dtype.element_ty), mask=dim_mask)
