"""Attention of one step on the CPU: decoding neighbours as one batch, every longer extend by itself.

All that is the same in every layer (views, masks, places to write) is made once per step. Sums and softmax
are float32 inside torch's fused kernel, whatever the dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shared.engine.contexts import Part
from shared.engine.linear import has_matrix_unit

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
SPLIT_ROWS = 32  # new tokens from which a prefix is worth a call of its own, without a mask
WIDE_ROWS = 16  # new tokens from which bfloat16 without a matrix unit is slower than float32


class Group(Protocol):
    """Rows of a step that are attended together."""

    def write(self, layer: int, kv: Tensor) -> None:
        """Put [rows, 2 kv_heads, head_dim], keys before values, into the contexts."""

    def attend(self, layer: int, window: int | None, queries: Tensor) -> Tensor:
        """From [rows, heads, head_dim] to the same shape."""


class StepAttention:
    """The `Attend` of one step. `parts` come in the order of their rows (see `by_place`)."""

    def __init__(self, parts: Sequence[Part], heads: int, windows: Sequence[int | None]) -> None:
        self._heads = heads
        self._windows = windows
        self._groups: list[tuple[int, int, Group]] = []
        row, at = 0, 0
        while at < len(parts):
            run = _run(parts[at:])
            group: Group = Decode(run) if run else Extend(parts[at])
            rows = len(run) or parts[at].new
            self._groups.append((row, row + rows, group))
            row, at = row + rows, at + (len(run) or 1)

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        window = self._windows[layer]
        outputs = []
        for first, end, group in self._groups:
            group.write(layer, qkv[first:end, self._heads :])
            outputs.append(group.attend(layer, window, qkv[first:end, : self._heads]).flatten(1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def by_place(part: Part) -> tuple[bool, int, int]:
    """Sorting key: decodes first, neighbours in an arena beside one another."""
    return (part.new > 1, id(part.context.arena), part.context.lane)


def _run(parts: Sequence[Part]) -> list[Part]:
    """The leading parts that decode in neighbouring lanes of one arena."""
    run: list[Part] = []
    for part in parts:
        context = part.context
        if part.new > 1 or (run and context.arena is not run[0].context.arena):
            break
        if run and context.lane != run[-1].context.lane + 1:
            break
        run.append(part)
    return run


class Decode:
    """One new token each, of contexts in neighbouring lanes."""

    def __init__(self, parts: Sequence[Part]) -> None:
        arena, lane = parts[0].context.arena, parts[0].context.lane
        self._kv = arena.kv[:, :, lane : lane + len(parts)]
        self._rows = arena.rows
        self._lengths = torch.tensor([part.end for part in parts])
        self._longest = max(part.end for part in parts)
        self._shortest = min(part.end for part in parts)
        _, _, lanes, kv_heads, capacity, _ = arena.kv.shape
        lane_heads = torch.arange(len(parts))[:, None, None] + lane
        lane_heads = (torch.arange(2)[:, None] * lanes + lane_heads) * kv_heads + torch.arange(kv_heads)
        self._places = (lane_heads * capacity + (self._lengths - 1)[:, None, None]).flatten()
        self._kv_heads = kv_heads
        self._seen: dict[int | None, tuple[tuple[Tensor, ...], Tensor | None]] = {}

    def write(self, layer: int, kv: Tensor) -> None:
        self._rows[layer].index_copy_(0, self._places, kv.reshape(-1, kv.shape[-1]))

    def attend(self, layer: int, window: int | None, queries: Tensor) -> Tensor:
        if window not in self._seen:
            self._seen[window] = self._view(window)
        kv, mask = self._seen[window]
        grouped = queries.view(len(queries), self._kv_heads, -1, queries.shape[-1])
        keys, values = kv[layer]
        mixed: Tensor = _flash(grouped.to(keys.dtype), keys, values, attn_mask=mask)[0]
        return mixed.flatten(1, 2).to(queries.dtype)

    def _view(self, window: int | None) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Per layer [2, lanes, kv_heads, seen, head_dim], and the mask where lanes see different places."""
        first = 0 if window is None else max(0, self._shortest - window)
        kv = self._kv[:, :, :, :, first : self._longest].unbind(0)
        if self._shortest == self._longest:
            return kv, None
        places = torch.arange(first, self._longest)
        hidden = places >= self._lengths[:, None]
        if window is not None:
            hidden |= places < self._lengths[:, None] - window
        return kv, _mask(hidden, self._kv.dtype)[:, None, None]


class Extend:
    """Several new tokens of one context: prefix without a mask, new part causal, merged by log-sum-exp."""

    def __init__(self, part: Part) -> None:
        self._start, self._end = part.context.length, part.end
        kv = part.context.kv
        self._new = kv[:, :, :, self._start : self._end].unbind(0)
        self._all = kv[:, :, :, : self._end].unsqueeze(2).unbind(0)
        self._masks: dict[int | None, Tensor] = {}
        wide = part.new >= WIDE_ROWS and not has_matrix_unit()
        self._dtype = torch.float32 if wide else kv.dtype

    def write(self, layer: int, kv: Tensor) -> None:
        new = self._new[layer]
        rows, heads, head_dim = kv.shape
        new.copy_(kv.view(rows, 2, heads // 2, head_dim).permute(1, 2, 0, 3))

    def attend(self, layer: int, window: int | None, queries: Tensor) -> Tensor:
        by_head = queries.transpose(0, 1).unsqueeze(0).to(self._dtype)
        keys, values = self._all[layer].to(self._dtype)
        if window is not None and window < self._end:
            return self._windowed(window, by_head, keys, values).to(queries.dtype)
        mixed: Tensor
        if self._start == 0:
            mixed = _flash(by_head, keys, values, is_causal=True)[0]
        elif len(queries) < SPLIT_ROWS:
            mixed = self._masked(by_head, keys, values)
        else:
            mixed = self._split(by_head, keys, values)
        return mixed[0].transpose(0, 1).to(queries.dtype)

    def _windowed(self, window: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        first = max(0, self._start + 1 - window)
        if window not in self._masks:
            places, rows = torch.arange(first, self._end), torch.arange(self._start, self._end)[:, None]
            self._masks[window] = _mask((places > rows) | (places <= rows - window), queries.dtype)
        mask = self._masks[window]
        mixed: Tensor = _flash(queries, keys[:, :, first:], values[:, :, first:], attn_mask=mask)[0]
        return mixed[0].transpose(0, 1)

    def _masked(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """One call over all places, the group's heads as further rows of their KV head."""
        kv_heads, head_dim = keys.shape[1], keys.shape[3]
        folded = queries.reshape(1, kv_heads, -1, head_dim)
        if None not in self._masks:
            places, rows = torch.arange(self._end), torch.arange(self._start, self._end)[:, None]
            self._masks[None] = _mask(places > rows, queries.dtype).repeat(queries.shape[1] // kv_heads, 1)
        mixed: Tensor = _flash(folded, keys, values, attn_mask=self._masks[None])[0]
        return mixed.reshape(queries.shape)

    def _split(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        start = self._start
        folded = queries.reshape(1, keys.shape[1], -1, keys.shape[3])
        old, old_scale = _flash(folded, keys[:, :, :start], values[:, :, :start])
        new, new_scale = _flash(queries, keys[:, :, start:], values[:, :, start:], is_causal=True)
        share = torch.sigmoid(old_scale.reshape(new_scale.shape) - new_scale).unsqueeze(-1)
        return torch.lerp(new, old.reshape(queries.shape), share.to(new.dtype))


def _mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
