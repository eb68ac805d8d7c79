"""Compiles every kernel that a model needs before the process is ready, and counts what is compiled after
that.

A kernel compiled on a live request stalls every sequence of the step for seconds, so the count must stay 0.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from shared.kernels import paged_attention
from shared.kernels.block_copy import gather_blocks, scatter_blocks
from shared.kernels.kv_write import rotate_and_write_kv
from shared.kernels.launch import attention_tile, device_kind, runs_kernels
from shared.kernels.rows import rms_norm, silu_mul
from shared.kernels.sampling import gumbel_argmax

KERNELS = {
    "shared.kernels.jit.attention": ("paged_attention", "combine_splits"),
    "shared.kernels.jit.kv_write": ("rotate_and_write_kv",),
    "shared.kernels.jit.block_copy": ("copy_blocks",),
    "shared.kernels.jit.rows": ("rms_norm", "silu_mul"),
    "shared.kernels.jit.sampling": ("draw_chunk",),
}
"""Kernels by module. A module that was never imported has compiled nothing."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides which kernels it needs."""

    q_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    norm_per_head: bool = False
    """Whether q and k are normed head by head (Qwen3)."""


def compiled_kernels() -> int:
    """Kernels compiled, or loaded from Triton's disk cache, by this process so far, over all devices."""
    total = 0
    for module_name, names in KERNELS.items():
        module = sys.modules.get(module_name)
        for name in names if module is not None else ():
            # An interpreted function has no caches.
            caches = getattr(getattr(module, name), "device_caches", {})
            total += sum(len(cache[0]) for cache in caches.values())
    return total


class CompilationCounter:
    """Counts kernels that were compiled after `mark_ready`."""

    def __init__(self) -> None:
        self._at_ready: int | None = None

    def mark_ready(self) -> None:
        self._at_ready = compiled_kernels()

    @property
    def after_ready(self) -> int:
        return 0 if self._at_ready is None else compiled_kernels() - self._at_ready


def warm_up(shape: ModelShape, pool: torch.Tensor, *, logits_dtype: torch.dtype = torch.float32) -> None:
    """Launches each kernel once in every form that `shape` needs, on the pool it will use; nothing on a CPU.

    pool: [blocks, layers, 2, kv_heads, block_tokens, head_dim], the real one: compiled forms depend on its
        strides and size. Its contents stay as they are.
    Activations must keep what is assumed here: the pool's dtype, 16-byte aligned rows.
    """
    if not runs_kernels(pool):
        return
    device, dtype = pool.device, pool.dtype
    fused = torch.zeros((1, shape.q_heads + 2 * shape.kv_heads, shape.head_dim), dtype=dtype, device=device)
    q, k = fused[:, : shape.q_heads], fused[:, shape.q_heads : -shape.kv_heads]
    v = fused[:, -shape.kv_heads :]
    k_cache, v_cache = pool[:, 0, 0], pool[:, 0, 1]
    _warm_attention(q, k_cache, v_cache)
    padding = torch.full((1,), -1, dtype=torch.int64, device=device)
    angles = torch.zeros((1, shape.head_dim // 2), dtype=torch.float32, device=device)
    rotate_and_write_kv(q, k, v, angles, angles, padding + 1, padding, k_cache, v_cache)
    block = torch.zeros(1, dtype=torch.int64, device=device)
    staging = torch.empty((1, *pool.shape[1:]), dtype=dtype, device=device)
    gather_blocks(pool, block, staging)
    scatter_blocks(staging, block, pool)
    _warm_rows(shape, q, k)
    logits = torch.zeros((1, shape.vocabulary), dtype=logits_dtype, device=device)
    gumbel_argmax(
        logits,
        torch.ones(1, dtype=torch.float32, device=device),
        block,
        block,
        torch.zeros(1, dtype=torch.int32, device=device),
    )


def _warm_attention(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Every row bucket, split (so that the combine step is compiled) over a table of one block."""
    bounds = torch.tensor([0, 1], dtype=torch.int32, device=q.device)
    start = torch.zeros(1, dtype=torch.int32, device=q.device)
    table = torch.zeros((1, 1), dtype=torch.int32, device=q.device)
    kind = device_kind(q.device)
    tiles = {attention_tile(kind, q.dtype, q.shape[2], rows) for rows in (1, 64, 4096)}
    for tile in tiles:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        paged_attention.launch(
            q, k_cache, v_cache, bounds, start, table, 1.0, None, None, out, tile, splits=2
        )


def _warm_rows(shape: ModelShape, q: torch.Tensor, k: torch.Tensor) -> None:
    x = torch.zeros((1, shape.hidden), dtype=q.dtype, device=q.device)
    weight = torch.ones(shape.hidden, dtype=q.dtype, device=q.device)
    rms_norm(x, weight, 1e-5)
    rms_norm(x, weight, 1e-5, x.clone())
    if shape.norm_per_head:
        head_weight = weight.new_ones(shape.head_dim)
        rms_norm(q, head_weight, 1e-5)
        rms_norm(k, head_weight, 1e-5)
    silu_mul(torch.zeros((1, 2 * shape.intermediate), dtype=q.dtype, device=q.device))
