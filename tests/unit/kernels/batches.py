"""Ragged paged batches for the kernel tests, and their float64 answer, row by row over contiguous keys."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch

NAN = float("nan")
MAP_NORESERVE = 0x4000  # Linux; in the mmap module from Python 3.13 on


def untouched_floats(count: int) -> torch.Tensor:
    """Zeros that take no memory until they are written: addresses far apart, on a small machine."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, count * 4, flags=flags), dtype=torch.float32)


Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass
class Batch:
    """One ragged batch; every slot of the caches that no item owns is NaN, and so is `out`."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    cu_seqlens: torch.Tensor
    start: torch.Tensor
    block_tables: torch.Tensor
    out: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    scale: float

    @property
    def arguments(self) -> Arguments:
        return (self.q, self.k_cache, self.v_cache, self.cu_seqlens, self.start, self.block_tables)


def strided_cache(
    blocks: int, kv_heads: int, block_tokens: int, head_dim: int, pad: int, dtype: torch.dtype
) -> torch.Tensor:
    """[blocks, kv_heads, block_tokens, head_dim] as one layer of a block-major pool; `pad` widens every
    stride.
    """
    pool = torch.full(
        (blocks, 3, 2, kv_heads + pad, block_tokens + pad, head_dim + 16 * pad), NAN, dtype=dtype
    )
    return pool[:, 1, 1, pad:, pad:, :head_dim]


def make_batch(
    lengths: list[tuple[int, int]],
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    block_tokens: int,
    dtype: torch.dtype = torch.float32,
    padding_rows: int = 0,
    seed: int = 0,
) -> Batch:
    """Items of (start, new tokens), their blocks in shuffled order, unused table entries pointing nowhere."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    needed = [-(-(start + new) // block_tokens) for start, new in lengths]
    blocks = sum(needed) + 2
    order = torch.randperm(blocks, generator=generator).tolist()
    k_cache = strided_cache(blocks, kv_heads, block_tokens, head_dim, 0, dtype)
    v_cache = strided_cache(blocks, kv_heads, block_tokens, head_dim, 1, dtype)
    assert k_cache.stride() != v_cache.stride()
    tables = torch.full((len(lengths), max(needed, default=0) + 3), 2**31 - 1, dtype=torch.int32)
    keys, values = [], []
    for item, (start, new) in enumerate(lengths):
        ids = [order.pop() for _ in range(needed[item])]
        tables[item, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        keys.append(random(kv_heads, start + new, head_dim))
        values.append(random(kv_heads, start + new, head_dim))
        for token in range(start + new):
            k_cache[ids[token // block_tokens], :, token % block_tokens] = keys[-1][:, token]
            v_cache[ids[token // block_tokens], :, token % block_tokens] = values[-1][:, token]
    news = [new for _, new in lengths]
    tokens = sum(news) + padding_rows
    # q as a slice of a fused projection, so that its strides are not those of a fresh tensor
    q = random(tokens, q_heads + 2, head_dim)[:, 1:-1]
    return Batch(
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        cu_seqlens=torch.tensor([sum(news[:i]) for i in range(len(news) + 1)], dtype=torch.int32),
        start=torch.tensor([start for start, _ in lengths], dtype=torch.int32),
        block_tables=tables,
        out=torch.full((tokens, q_heads, head_dim), NAN, dtype=dtype),
        keys=keys,
        values=values,
        scale=head_dim**-0.5,
    )


def truth(batch: Batch, window: int | None = None, softcap: float | None = None) -> torch.Tensor:
    """The answer in float64, NaN in padding rows."""
    out = torch.full(batch.out.shape, NAN, dtype=torch.float64)
    bounds = batch.cu_seqlens.tolist()
    for item, start in enumerate(batch.start.tolist()):
        q = batch.q[bounds[item] : bounds[item + 1]].double()
        group = q.shape[1] // batch.keys[item].shape[0]
        for row in range(q.shape[0]):
            position = start + row
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(q.shape[1]):
                k = batch.keys[item][head // group, first : position + 1].double()
                v = batch.values[item][head // group, first : position + 1].double()
                scores = k @ q[row, head] * batch.scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                out[bounds[item] + row, head] = torch.softmax(scores, 0) @ v
    return out


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference; infinite where NaNs do not stand in the same places."""
    found = found.double()
    if not torch.equal(found.isnan(), expected.isnan()):
        return float("inf")
    return float((found - expected).nan_to_num().abs().max()) if found.numel() else 0.0
