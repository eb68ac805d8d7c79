"""KV write with rotary embedding, and block copies, under the interpreter."""

from __future__ import annotations

import math

import torch

from shared.kernels.block_copy import gather_blocks, scatter_blocks
from shared.kernels.kv_write import rotate_and_write_kv
from shared.kernels.warmup import ModelShape, warm_up
from tests.unit.kernels.batches import NAN, strided_cache, untouched_floats


def rope_truth(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding as a complex product per pair (i, i + d / 2), float64."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * frequencies
    turned = pairs * torch.polar(torch.ones_like(angle), angle)[:, None, :]
    return torch.cat((turned.real, turned.imag), -1)


def tables(half: int, count: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(count, dtype=torch.float64)[:, None] * frequencies
    return angle.cos().float(), angle.sin().float()


def cut(fused: torch.Tensor, q_heads: int, kv_heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return fused[:, :q_heads], fused[:, q_heads : q_heads + kv_heads], fused[:, q_heads + kv_heads :]


def check_write(
    q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32, tolerance: float = 2e-6
) -> None:
    torch.manual_seed(q_heads)
    tokens, block_tokens, blocks = 5, 8, 6
    # one fused projection, cut into strided q, k and v
    fused = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim).to(dtype)
    q, k, v = cut(fused, q_heads, kv_heads)
    before = fused.clone()
    positions = torch.tensor([0, 7, 3, 63, 0])
    slots = torch.tensor([0, 9, 41, 47, -1])
    caches = [strided_cache(blocks, kv_heads, block_tokens, head_dim, pad, dtype) for pad in (0, 1)]
    cos, sin = tables(head_dim // 2, 64, 1e4)
    rotate_and_write_kv(q, k, v, cos, sin, positions, slots, *caches)
    q_before, k_before, v_before = cut(before, q_heads, kv_heads)
    assert torch.equal(k, k_before)
    assert torch.equal(v, v_before)
    assert torch.equal(q[-1], q_before[-1])
    assert (q[:-1].double() - rope_truth(q_before, positions, 1e4)[:-1]).abs().max() < tolerance
    k_truth = rope_truth(k_before, positions, 1e4)
    for token, slot in enumerate(slots.tolist()[:-1]):
        at = slot // block_tokens, slice(None), slot % block_tokens
        assert (caches[0][at].double() - k_truth[token]).abs().max() < tolerance
        assert torch.equal(caches[1][at], v_before[token])
        for cache in caches:
            cache[at] = NAN
    # all else is the poison it was
    for cache in caches:
        assert bool(cache.isnan().all())


def write_odd_heads() -> None:
    check_write(3, 1, 64)


def write_many_heads() -> None:
    check_write(17, 9, 64)


def write_head_dim_96() -> None:
    check_write(2, 2, 96)


def write_head_dim_256() -> None:
    check_write(2, 1, 256)


def write_one_token_group() -> None:
    check_write(1, 1, 128)


def write_bfloat16() -> None:
    check_write(3, 1, 64, torch.bfloat16, 2e-2)


def write_float16() -> None:
    check_write(3, 1, 96, torch.float16, 3e-3)


def write_far_block() -> None:
    stride = 2**30 + 16
    memory = untouched_floats(2 * stride + 4096)
    k_cache = memory.as_strided((3, 1, 4, 64), (stride, 64, 64, 1))
    v_cache = memory[1024:].as_strided((3, 1, 4, 64), (stride, 64, 64, 1))
    q, k, v = torch.randn(3, 1, 1, 64).unbind(0)
    cos, sin = tables(32, 8, 1e4)
    rotate_and_write_kv(q, k, v, cos, sin, torch.tensor([5]), torch.tensor([2 * 4 + 3]), k_cache, v_cache)
    assert torch.equal(v_cache[2, 0, 3], v[0, 0])
    assert (k_cache[2, 0, 3].double() - rope_truth(k, torch.tensor([5]), 1e4)[0, 0]).abs().max() < 2e-6


def check_copy(dtype: torch.dtype, block_shape: tuple[int, ...], *, pad: int = 0, offset: int = 0) -> None:
    """Random bytes, NaN patterns among them, out and back, between guard blocks that must not change."""
    torch.manual_seed(math.prod(block_shape))
    size = torch.empty(0, dtype=dtype).element_size()
    elements = math.prod(block_shape)

    def buffer(count: int) -> torch.Tensor:
        raw = torch.randint(0, 256, (count * (elements + pad) * size + offset * size,), dtype=torch.uint8)
        flat = raw.view(dtype)[offset:]
        strides = [1]
        for extent in reversed(block_shape[1:]):
            strides.insert(0, strides[0] * extent)
        return flat.as_strided((count, *block_shape), (elements + pad, *strides), flat.storage_offset())

    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().view(torch.uint8)

    pool, staging, back = buffer(6), buffer(4), buffer(6)
    untouched, guard = raw(staging[3:]).clone(), raw(back).clone()
    ids = torch.tensor([5, 0, 3])
    gather_blocks(pool, ids, staging)
    assert torch.equal(raw(staging[:3]), raw(pool[ids]))
    assert torch.equal(raw(staging[3:]), untouched)
    scatter_blocks(staging, ids, back)
    assert torch.equal(raw(back[ids]), raw(pool[ids]))
    rest = [1, 2, 4]
    assert torch.equal(raw(back[rest]), guard.view(6, -1)[rest].view(raw(back[rest]).shape))


def copy_pool_layout() -> None:
    check_copy(torch.bfloat16, (2, 2, 3, 16, 32))


def copy_odd_bytes() -> None:
    check_copy(torch.uint8, (7, 3))


def copy_odd_halves_unaligned() -> None:
    check_copy(torch.bfloat16, (5, 3), pad=1, offset=1)


def copy_wide_stride() -> None:
    check_copy(torch.float32, (2, 2, 1, 8, 64), pad=64)


def copy_nothing() -> None:
    pool = torch.zeros(2, 4)
    gather_blocks(pool, torch.empty(0, dtype=torch.int64), torch.zeros(0, 4))
    scatter_blocks(torch.zeros(0, 4), torch.empty(0, dtype=torch.int64), pool)


def copy_far_block() -> None:
    stride = 2**30 + 16
    pool = untouched_floats(2 * stride + 64).as_strided((3, 64), (stride, 1))
    staging = torch.randn(1, 64)
    scatter_blocks(staging, torch.tensor([2]), pool)
    assert torch.equal(pool[2], staging[0])
    back = torch.full((1, 64), NAN)
    gather_blocks(pool, torch.tensor([2]), back)
    assert torch.equal(back, staging)


def warm_up_leaves_the_pool_as_it_was() -> None:
    pool = torch.randn(2, 2, 2, 1, 16, 64)
    before = pool.clone()
    warm_up(ModelShape(2, 1, 64, 96, 48, 1100, norm_per_head=True), pool)
    assert torch.equal(pool, before)


CASES = (
    warm_up_leaves_the_pool_as_it_was,
    write_odd_heads,
    write_many_heads,
    write_head_dim_96,
    write_head_dim_256,
    write_one_token_group,
    write_bfloat16,
    write_float16,
    write_far_block,
    copy_pool_layout,
    copy_odd_bytes,
    copy_odd_halves_unaligned,
    copy_wide_stride,
    copy_nothing,
    copy_far_block,
)
