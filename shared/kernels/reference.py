"""What each kernel must compute, in plain torch: no triton, no paging tricks, no speed.

Accumulates in float32, or in float64 when the inputs are float64. On a CPU these are also what the wrappers
run.
"""

from __future__ import annotations

import torch

from shared.kernels.philox import gumbel_noise

ROWS_AT_ONCE = 256
"""Query rows whose scores are held at a time, so that a long prompt does not need tokens x context memory."""


def _accumulation(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def gather_sequence(cache: torch.Tensor, blocks: torch.Tensor, tokens: int) -> torch.Tensor:
    """The first `tokens` rows of a sequence, [kv_heads, tokens, head_dim], from its block ids, in order."""
    block_tokens = cache.shape[2]
    used = blocks[: -(-tokens // block_tokens)].to(torch.int64)
    rows = cache[used].transpose(0, 1)
    return rows.reshape(cache.shape[1], -1, cache.shape[3])[:, :tokens]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """q [n, q_heads, d] at positions start.. over k, v [kv_heads, start + n, d], causal -> like q."""
    group = q.shape[1] // k.shape[0]
    dtype = _accumulation(q.dtype)
    k = k.to(dtype).repeat_interleave(group, 0)
    v = v.to(dtype).repeat_interleave(group, 0)
    columns = torch.arange(k.shape[1], device=q.device)
    out = torch.empty_like(q)
    for first in range(0, q.shape[0], ROWS_AT_ONCE):
        rows = q[first : first + ROWS_AT_ONCE].to(dtype).transpose(0, 1)
        positions = torch.arange(start + first, start + first + rows.shape[1], device=q.device)[:, None]
        scores = rows @ k.transpose(1, 2) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        hidden = columns > positions
        if window is not None:
            hidden |= columns <= positions - window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[first : first + ROWS_AT_ONCE] = (weights @ v).transpose(0, 1).to(q.dtype)
    return out


def extend_attention(
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
) -> None:
    """Writes the rows of `out` that belong to an item; shapes as in `shared.kernels.extend_attention`."""
    bounds = cu_seqlens.tolist()
    starts = start.tolist()
    for item, cached in enumerate(starts):
        first, end = bounds[item], bounds[item + 1]
        if first == end:
            continue
        context = cached + end - first
        k = gather_sequence(k_cache, block_tables[item], context)
        v = gather_sequence(v_cache, block_tables[item], context)
        out[first:end] = attend(q[first:end], k, v, cached, scale, window, softcap)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in the half-split layout: x [tokens, heads, d], cos and sin [tokens, d / 2]."""
    dtype = _accumulation(x.dtype)
    first, second = x.to(dtype).chunk(2, -1)
    cos = cos.to(dtype)[:, None, :]
    sin = sin.to(dtype)[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def rotate_and_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> None:
    """Rotates q in place, writes rotated k and plain v to their slots; shapes as in
    `shared.kernels.kv_write`.
    """
    real = (slots >= 0).nonzero()[:, 0]
    where = positions[real].to(torch.int64)
    cos, sin = cos[where], sin[where]
    q[real] = rotate(q[real], cos, sin)
    block_tokens = k_cache.shape[2]
    blocks = slots[real].to(torch.int64) // block_tokens
    offsets = slots[real].to(torch.int64) % block_tokens
    k_cache[blocks, :, offsets] = rotate(k[real], cos, sin)
    v_cache[blocks, :, offsets] = v[real]


def gather_blocks(pool: torch.Tensor, ids: torch.Tensor, staging: torch.Tensor) -> None:
    """staging[i] = pool[ids[i]], whole blocks."""
    staging[: ids.shape[0]] = pool[ids.to(torch.int64)]


def scatter_blocks(staging: torch.Tensor, ids: torch.Tensor, pool: torch.Tensor) -> None:
    """pool[ids[i]] = staging[i], whole blocks; ids are distinct."""
    pool[ids.to(torch.int64)] = staging[: ids.shape[0]]


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> torch.Tensor:
    """x * weight / rms(x) over the last dimension; with a residual: residual += x first, and the norm is its
    norm.
    """
    dtype = _accumulation(x.dtype)
    if residual is not None:
        residual.copy_(residual.to(dtype) + x.to(dtype))
        x = residual
    wide = x.to(dtype)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(dtype)).to(x.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, where a row of `gate_up` is gate then up."""
    gate, up = gate_up.to(_accumulation(gate_up.dtype)).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def gumbel_argmax(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    choices: torch.Tensor,
) -> torch.Tensor:
    """One id per row, int64; shapes and the meaning of -1 as in `shared.kernels.sampling`."""
    scores = logits.to(torch.float64)
    ids = torch.arange(logits.shape[1], device=logits.device)
    drawn = temperature > 0
    if bool(drawn.any()):
        noise = gumbel_noise(seeds[drawn], positions[drawn], choices[drawn], ids)
        scores[drawn] = scores[drawn] / temperature[drawn].to(torch.float64)[:, None] + noise
    best = scores.amax(1, keepdim=True)
    lowest = torch.where(scores == best, ids, logits.shape[1]).amin(1)
    # A NaN row has a NaN maximum, which equals nothing; a row with nothing kept has -inf.
    return torch.where(best[:, 0].isnan() | (best[:, 0] == float("-inf")), -1, lowest)
