"""Whole KV blocks between the pool and a staging buffer, byte for byte. Knows not what a block holds."""

from __future__ import annotations

import torch

from shared.kernels import checks, reference
from shared.kernels.launch import COPY, runs_kernels

WORDS = (torch.int64, torch.int32, torch.int16, torch.int8)


def gather_blocks(pool: torch.Tensor, ids: torch.Tensor, staging: torch.Tensor) -> None:
    """staging[i] = pool[ids[i]].

    pool: [blocks, ...], staging: [at least len(ids), ...], same dtype and block shape, each block contiguous.
    ids: [n] int64. Raises ValueError or TypeError naming the argument.
    """
    _check(pool, ids, staging)
    if not runs_kernels(pool):
        reference.gather_blocks(pool, ids, staging)
    elif ids.shape[0]:
        _copy(pool, ids, staging, to_pool=False)


def scatter_blocks(staging: torch.Tensor, ids: torch.Tensor, pool: torch.Tensor) -> None:
    """pool[ids[i]] = staging[i]; ids are distinct. Arguments as in `gather_blocks`."""
    _check(pool, ids, staging)
    if not runs_kernels(pool):
        reference.scatter_blocks(staging, ids, pool)
    elif ids.shape[0]:
        _copy(pool, ids, staging, to_pool=True)


def _check(pool: torch.Tensor, ids: torch.Tensor, staging: torch.Tensor) -> None:
    checks.shape("ids", ids, (None,))
    checks.dtype("ids", ids, (torch.int64,))
    checks.dtype("staging", staging, (pool.dtype,))
    checks.shape("staging", staging, (None, *pool.shape[1:]))
    checks.contiguous("ids", ids)
    if staging.shape[0] < ids.shape[0]:
        raise ValueError(
            f"staging holds {staging.shape[0]} blocks, must hold the {ids.shape[0]} that ids names"
        )
    for name, tensor in (("pool", pool), ("staging", staging)):
        if tensor.shape[0]:
            checks.contiguous(f"a block of {name}", tensor[0])
    checks.same_device(pool, ids=ids, staging=staging)


def _copy(pool: torch.Tensor, ids: torch.Tensor, staging: torch.Tensor, *, to_pool: bool) -> None:
    from shared.kernels.jit.block_copy import copy_blocks

    size = pool.element_size()
    elements = pool[0].numel()
    word = _widest_word(pool, staging, elements * size)
    words = elements * size // word.itemsize
    copy_blocks[(ids.shape[0], -(-words // COPY.block))](
        _as_words(pool, word, elements),
        _as_words(staging, word, elements),
        ids,
        pool.stride(0) * size // word.itemsize,
        staging.stride(0) * size // word.itemsize,
        words,
        int(to_pool),
        BLOCK_WORDS=COPY.block,
        num_warps=COPY.warps,
    )


def _widest_word(pool: torch.Tensor, staging: torch.Tensor, block_bytes: int) -> torch.dtype:
    """The widest integer that divides a block, both strides and both addresses."""
    size = pool.element_size()
    whole = (
        block_bytes
        | (pool.stride(0) * size)
        | (staging.stride(0) * size)
        | pool.data_ptr()
        | staging.data_ptr()
    )
    return next(word for word in WORDS if whole % word.itemsize == 0)


def _as_words(buffer: torch.Tensor, word: torch.dtype, elements: int) -> torch.Tensor:
    """The first block's memory as integers; the kernel reaches the others by the block stride."""
    return buffer.as_strided((1, elements), (elements, 1)).view(word)
