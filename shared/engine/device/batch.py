"""The rows of one step as the kernels want them: ragged metadata in fixed buffers on the device.

A step is padded up to a `Shape` of a short list, so that a recorded graph of that shape serves it: padding
rows have no slot, padding items no rows. One copy of integers of each width brings a step to the device.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.engine.api import WorkItem
from shared.engine.device.block_rows import BlockRows

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512)
"""Rows that steps are padded to; a larger step runs at its own size."""
MEAN_ROWS = (1, 8, 64)
"""New tokens per item, on average, that a shape is made for: the kernel's tile follows from them."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Room for `tokens` rows of `items` sequences."""

    tokens: int
    items: int


def shapes(most: Shape) -> list[Shape]:
    """All shapes that steps within `most` are padded to, sorted."""
    sizes = [size for size in TOKENS if size <= most.tokens]
    means = [(size, mean) for size in sizes for mean in MEAN_ROWS]
    return sorted({Shape(size, min(most.items, -(-size // mean))) for size, mean in means})


def fitting(known: Sequence[Shape], tokens: int, items: int) -> Shape:
    """The smallest of the sorted shapes that holds the step; the step's own where none does."""
    for shape in known[bisect.bisect_left(known, Shape(tokens, items)) :]:
        if shape.items >= items:
            return shape
    return Shape(tokens, items)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step on the device; all are views of the same two buffers, whatever the shape.

    ids, positions, slots: [tokens] int64, slot -1 where a row is padding. last: [items] int64, the row of
    each item's last token. bounds: [items + 1], start: [items], tables: [items, width]; int32.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    last: Tensor
    bounds: Tensor
    start: Tensor
    tables: Tensor


class Buffers:
    """Memory of a step's integers, on the host and on the device, for shapes up to `most`.

    `width`: blocks of the longest context. Every part starts at a multiple of 16 bytes, whatever the shape:
    compiled kernels differ by what they know of an address.
    """

    def __init__(self, most: Shape, width: int, block_tokens: int, device: torch.device) -> None:
        self._width = -(-width // _ALIGNED_WIDTH) * _ALIGNED_WIDTH
        self._block_tokens = block_tokens
        self._most = most
        self._device = device
        pinned = device.type == "cuda"
        longs, words = _extent(self._longs_of(most)), _extent(self._words_of(most))
        self._host_longs = torch.zeros(longs, dtype=torch.int64, pin_memory=pinned)
        self._host_words = torch.zeros(words, dtype=torch.int32, pin_memory=pinned)
        self._longs = torch.zeros(longs, dtype=torch.int64, device=device)
        self._words = torch.zeros(words, dtype=torch.int32, device=device)

    def holds(self, shape: Shape) -> bool:
        return shape.tokens <= self._most.tokens and shape.items <= self._most.items

    def batch(self, shape: Shape) -> Batch:
        """The device's views for a shape: the same memory every time."""
        return self._views(shape, self._longs, self._words)

    def fill(self, shape: Shape, items: Sequence[WorkItem], rows: BlockRows) -> Batch:
        """Write a step and send it. The last step must be over: its integers are overwritten."""
        host = self._views(shape, self._host_longs, self._host_words)
        lengths = np.fromiter((len(item.ids) for item in items), np.int64, len(items))
        starts = np.fromiter((item.start for item in items), np.int64, len(items))
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        tokens = int(bounds[-1])
        owner = np.repeat(np.arange(len(items)), lengths)
        positions = np.arange(tokens) - bounds[:-1][owner] + starts[owner]

        ids = host.ids.numpy()
        ids[:tokens] = np.fromiter((token for item in items for token in item.ids), np.int64, tokens)
        ids[tokens:] = 0
        host.positions.numpy()[:tokens] = positions
        host.positions.numpy()[tokens:] = 0
        host.last.numpy()[: len(items)] = bounds[1:] - 1
        host.last.numpy()[len(items) :] = 0
        host.bounds.numpy()[: len(bounds)] = bounds
        host.bounds.numpy()[len(bounds) :] = tokens
        host.start.numpy()[: len(items)] = starts
        host.start.numpy()[len(items) :] = 0
        tables = host.tables.numpy()
        for at, item in enumerate(items):
            row = rows.row(item.seq, item.blocks)
            tables[at, : len(row)] = row
        size = self._block_tokens
        slots = host.slots.numpy()
        slots[:tokens] = tables[owner, positions // size].astype(np.int64) * size + positions % size
        slots[tokens:] = -1
        return self._send(shape)

    def _send(self, shape: Shape) -> Batch:
        longs, words = _extent(self._longs_of(shape)), _extent(self._words_of(shape))
        self._longs[:longs].copy_(self._host_longs[:longs], non_blocking=True)
        self._words[:words].copy_(self._host_words[:words], non_blocking=True)
        return self.batch(shape)

    def _longs_of(self, shape: Shape) -> tuple[int, ...]:
        return (shape.tokens, shape.tokens, shape.tokens, shape.items)

    def _words_of(self, shape: Shape) -> tuple[int, ...]:
        return (shape.items + 1, shape.items, shape.items * self._width)

    def _views(self, shape: Shape, longs: Tensor, words: Tensor) -> Batch:
        ids, positions, slots, last = _parts(longs, self._longs_of(shape))
        bounds, start, tables = _parts(words, self._words_of(shape))
        return Batch(ids, positions, slots, last, bounds, start, tables.view(shape.items, self._width))


_ALIGNED_WIDTH = 16
_ALIGNED = 4  # elements: 16 bytes of the narrower kind


def _extent(sizes: Sequence[int]) -> int:
    return sum(-(-size // _ALIGNED) * _ALIGNED for size in sizes)


def _parts(memory: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views of so many elements each, one behind another at aligned places."""
    parts, at = [], 0
    for size in sizes:
        parts.append(memory[at : at + size])
        at += -(-size // _ALIGNED) * _ALIGNED
    return parts
