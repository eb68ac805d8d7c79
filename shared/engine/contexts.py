"""The KV of running sequences, contiguous for attention: read from pool blocks once, then kept step by step.

A context lies in one lane of an arena; lanes of an arena have equal capacity, so that neighbouring lanes are
one strided tensor and decode as one batch. Knows no model: layers and heads come from the store's shape.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.kv.memory import anonymous
from shared.kv.store import KvStore

SMALLEST = 256  # tokens of the smallest lane
ARENA_LANES = 16
ARENA_BYTES = 1 << 30  # of one arena at most, unless one lane is larger; committed only when written


class Arena:
    """`lanes` contexts of up to `capacity` tokens: zeroed memory, so that unwritten places are finite.

    `kv`: [layers, 2, lanes, kv_heads, capacity, head_dim].
    """

    def __init__(self, layers: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype) -> None:
        lane = layers * 2 * kv_heads * capacity * head_dim * dtype.itemsize
        self.capacity = capacity
        self.lanes = max(1, min(ARENA_LANES, ARENA_BYTES // lane))
        memory = anonymous(lane * self.lanes)
        flat = torch.frombuffer(memory, dtype=dtype)
        self.kv = flat.view(layers, 2, self.lanes, kv_heads, capacity, head_dim)
        self.rows = self.kv.view(layers, -1, head_dim).unbind(0)
        self._free = list(range(self.lanes))
        self._dirty = [0] * self.lanes

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def empty(self) -> bool:
        return len(self._free) == self.lanes

    def take(self, kept: int) -> int:
        """The lowest free lane. What an earlier sequence left after `kept` tokens is zeroed."""
        lane = heapq.heappop(self._free)
        self.kv[:, :, lane, :, kept : max(kept, self._dirty[lane])].zero_()
        return lane

    def give(self, lane: int, used: int) -> None:
        """Free a lane of which the first `used` tokens were written."""
        self._dirty[lane] = used
        heapq.heappush(self._free, lane)


@dataclass(slots=True)
class Context:
    """One sequence: `length` tokens have their KV in the lane."""

    arena: Arena
    lane: int
    length: int = 0
    reach: int = 0  # tokens ever written
    saved: bool = True  # all of it is in the pool's blocks as well
    used: int = 0  # step of last use

    @property
    def kv(self) -> Tensor:
        """[layers, 2, kv_heads, capacity, head_dim]"""
        return self.arena.kv[:, :, self.lane]


@dataclass(frozen=True, slots=True)
class Part:
    """`new` tokens of one context, which holds `context.length` before them."""

    context: Context
    new: int

    @property
    def end(self) -> int:
        return self.context.length + self.new


class Contexts:
    """Contexts by sequence number.

    Above `most_bytes` those idle longest are dropped, as far as the pool's blocks have all of them.
    """

    def __init__(self, store: KvStore, max_context: int, most_bytes: int) -> None:
        self._store = store
        self._block_tokens = store.layout.block_tokens
        self._max_context = max_context
        self._most_bytes = most_bytes
        _, self._layers, _, self._kv_heads, _, self._head_dim = store.tensor.shape
        self._token_bytes = store.block_bytes // self._block_tokens
        self._arenas: list[Arena] = []
        self._live: dict[int, Context] = {}
        self._step = 0

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, ended: Sequence[int]) -> None:
        """Start a step: contexts of `ended` are given back."""
        self._step += 1
        for seq in ended:
            self.drop(seq)

    def ready(self, seq: int, start: int, new: int, blocks: Sequence[int]) -> Context:
        """The context of `seq` holding positions 0 .. start - 1, with room for `new` more.

        What it lacks is read from `blocks`; what it holds beyond `start` is forgotten.
        """
        context = self._live.get(seq)
        end = start + new
        if context is None:
            context = self._live[seq] = Context(*self._lane(end))
        elif end > context.arena.capacity:
            self._grow(context, end)
        if start > context.length:
            self._load(context, start, blocks)
        context.length = start
        context.reach = max(context.reach, end)
        context.used = self._step
        return context

    def commit(self, context: Context, new: int, blocks: Sequence[int]) -> None:
        """`new` tokens were written behind `length`: keep them, and copy each block that is full to the pool.

        A partial last block follows after more than one token; a decoding one's stays here until it is full.
        """
        size = self._block_tokens
        first, end = context.length // size, context.length + new
        last = -(-end // size) if new > 1 else end // size
        context.length = end
        context.saved = new > 1 or end % size == 0
        for index in range(first, last):
            part = context.kv[:, :, :, index * size : min(end, (index + 1) * size)]
            block = self._store.tensor[blocks[index]][:, :, :, : part.shape[3]]
            block.copy_(part)

    def drop(self, seq: int) -> None:
        """Forget a sequence; nothing happens where there is none."""
        context = self._live.pop(seq, None)
        if context is not None:
            self._release(context)

    def trim(self) -> None:
        """Drop contexts idle longest while there are more than `most_bytes`."""
        held = sum(context.arena.capacity for context in self._live.values()) * self._token_bytes
        if held <= self._most_bytes:
            return
        idle = [seq for seq, each in self._live.items() if each.saved and each.used < self._step]
        for seq in sorted(idle, key=lambda seq: self._live[seq].used):
            if held <= self._most_bytes:
                break
            held -= self._live[seq].arena.capacity * self._token_bytes
            self.drop(seq)

    def _lane(self, length: int) -> tuple[Arena, int]:
        capacity = SMALLEST
        while capacity < length:
            capacity *= 2
        capacity = min(capacity, max(self._max_context, length))
        fitting = [each for each in self._arenas if each.capacity == capacity and not each.full]
        if not fitting:
            dtype = self._store.tensor.dtype
            fitting = [Arena(self._layers, self._kv_heads, capacity, self._head_dim, dtype)]
            self._arenas += fitting
        return fitting[0], fitting[0].take(length)

    def _grow(self, context: Context, length: int) -> None:
        arena, lane = self._lane(length)
        moved = Context(arena, lane)
        moved.kv[:, :, :, : context.length].copy_(context.kv[:, :, :, : context.length])
        self._release(context)
        context.arena, context.lane = arena, lane

    def _release(self, context: Context) -> None:
        context.arena.give(context.lane, context.reach)
        if context.arena.empty:
            self._arenas.remove(context.arena)

    def _load(self, context: Context, upto: int, blocks: Sequence[int]) -> None:
        size = self._block_tokens
        for index in range(context.length // size, -(-upto // size)):
            at = index * size
            count = min(upto - at, size)
            block = self._store.tensor[blocks[index]][:, :, :, :count]
            part = context.kv[:, :, :, at : at + count]
            part.copy_(block)
