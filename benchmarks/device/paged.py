"""Random paged keys and values for attention, and the same contiguous for kernels that want them so."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """`items` sequences of `start` cached and `new` new tokens each."""

    items: int
    start: int
    new: int
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    block_tokens: int = 32
    dtype: torch.dtype = torch.bfloat16

    @property
    def context(self) -> int:
        return self.start + self.new

    @property
    def moved(self) -> int:
        """Bytes of keys, values, queries and results."""
        kv = 2 * self.items * self.context * self.kv_heads
        rows = 2 * self.items * self.new * self.q_heads
        return (kv + rows) * self.head_dim * self.dtype.itemsize

    @property
    def operations(self) -> float:
        """Of both products, over what causality leaves."""
        seen = self.new * self.start + self.new * (self.new + 1) / 2
        return 4.0 * self.items * self.q_heads * self.head_dim * seen

    def __str__(self) -> str:
        heads = f"{self.q_heads}/{self.kv_heads} x {self.head_dim}"
        return (
            f"{self.items} x ({self.start} + {self.new}), {heads}, {str(self.dtype).removeprefix('torch.')}"
        )


@dataclass(frozen=True, slots=True)
class Pages:
    """Arguments of `extend_attention`; blocks lie in random order. `layers` of a pool, the last one used."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    bounds: Tensor
    start: Tensor
    tables: Tensor

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return (self.q, self.k_cache, self.v_cache, self.bounds, self.start, self.tables)

    def contiguous(self) -> tuple[Tensor, Tensor]:
        """Keys and values [items, kv_heads, context, head_dim], padded to whole blocks."""

        def gathered(cache: Tensor) -> Tensor:
            rows = cache[self.tables.long()]  # [items, blocks, kv_heads, block_tokens, head_dim]
            return rows.transpose(1, 2).flatten(2, 3).contiguous()

        return gathered(self.k_cache), gathered(self.v_cache)


def pages(shape: Shape, device: torch.device, *, layers: int = 1, block_major: bool = True) -> Pages:
    """Random contents; the pool's order is the mesh's where `block_major`: [blocks, layers, 2, ...], else
    [layers, 2, blocks, ...].
    """
    random = torch.Generator(device=device).manual_seed(shape.context)
    per_item = -(-shape.context // shape.block_tokens)
    blocks = shape.items * per_item
    page = (shape.kv_heads, shape.block_tokens, shape.head_dim)

    def made(*size: int) -> Tensor:
        return torch.randn(size, generator=random, device=device, dtype=torch.float32).to(shape.dtype)

    if block_major:
        pool = made(blocks, layers, 2, *page)
        k_cache, v_cache = pool[:, -1, 0], pool[:, -1, 1]
    else:
        pool = made(layers, 2, blocks, *page)
        k_cache, v_cache = pool[-1, 0], pool[-1, 1]
    order = torch.randperm(blocks, generator=random, device=device).to(torch.int32)
    bounds = torch.arange(shape.items + 1, device=device, dtype=torch.int32) * shape.new
    start = torch.full((shape.items,), shape.start, device=device, dtype=torch.int32)
    q = made(shape.items * shape.new, shape.q_heads, shape.head_dim)
    return Pages(q, k_cache, v_cache, bounds, start, order.view(shape.items, per_item))
