"""Whole blocks between the pool and a staging buffer, byte for byte. Knows nothing of what a block holds."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["ids_ptr", "to_pool"])
def copy_blocks(
    pool_ptr,
    staging_ptr,
    ids_ptr,
    stride_pool_block: tl.int64,
    stride_staging_block: tl.int64,
    words: tl.int64,
    to_pool: tl.int32,
    BLOCK_WORDS: tl.constexpr,
):
    """Grid: (blocks named in `ids`, cdiv(words, BLOCK_WORDS)). Row i of staging holds pool block ids[i].

    Both buffers are seen as integers of one width; strides and `words` count those.
    """
    row = tl.program_id(0)
    block = tl.load(ids_ptr + row).to(tl.int64)
    word = tl.program_id(1).to(tl.int64) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    mask = word < words
    in_pool = pool_ptr + block * stride_pool_block + word
    in_staging = staging_ptr + row.to(tl.int64) * stride_staging_block + word
    if to_pool != 0:
        tl.store(in_pool, tl.load(in_staging, mask=mask), mask=mask)
    else:
        tl.store(in_staging, tl.load(in_pool, mask=mask), mask=mask)
