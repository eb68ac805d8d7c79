"""Rotary embedding as one complex product over pairs, and the order of a head's dimensions that it needs.

Checkpoints and the pool keep a head as two halves (dimension i rotates with i + d/2). The engine computes
with partners side by side (at 2i and 2i + 1): weights are reordered when loaded, keys whenever a block
passes between pool and context.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shared.engine.model_config import Rope


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Angle per position of each pair: float32 [head_dim / 2], rounded as the models were trained.

    "llama3" is the scaling of Llama 3.1: wavelengths above the original context over `low_freq_factor` are
    stretched by `factor`, those below it over `high_freq_factor` are kept, in between the two are blended.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "default":
        return plain
    stretched = plain / rope.factor
    if rope.kind == "linear":
        return stretched
    turns = rope.original_max_position * plain / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return keep * plain + (1 - keep) * stretched


class Rotary:
    """Unit complex numbers by position, made as far as they are needed."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self._frequencies = frequencies(rope, head_dim)
        self._table = torch.empty(0, head_dim // 2, dtype=torch.complex64)

    def at(self, positions: Tensor, highest: int) -> Tensor:
        """For int64 [rows] positions up to `highest`: complex64 [rows, 1, head_dim / 2]."""
        if highest >= len(self._table):
            length = max(1024, 1 << highest.bit_length())
            angles = torch.arange(length, dtype=torch.float32)[:, None] * self._frequencies
            self._table = torch.complex(angles.cos(), angles.sin())
        return self._table[positions].unsqueeze(1)


def rotate_(states: Tensor, turns: Tensor) -> None:
    """Rotate [rows, heads, head_dim] (pairs side by side) in place by `turns`; computed in float32."""
    pairs = split(states.float(), -1, 2)
    turned = torch.view_as_complex(pairs).mul_(turns)
    if states.dtype != torch.float32:
        states.copy_(torch.view_as_real(turned).flatten(-2))


def pair_rows(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of [heads * head_dim, ...] from halves to pairs, a copy."""
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def as_pairs(halves: Tensor) -> Tensor:
    """View of [..., head_dim] in halves, as [..., head_dim / 2, 2]: what a context holds."""
    return split(halves, 2, -1).transpose(-1, -2)


def as_halves(pairs: Tensor) -> Tensor:
    """View of [..., head_dim] in pairs, as [..., 2, head_dim / 2]: what the pool holds."""
    return split(pairs, -1, 2).transpose(-1, -2)


def split(states: Tensor, outer: int, inner: int) -> Tensor:
    """View of [..., head_dim] as [..., outer, inner]; -1 stands for what is left."""
    return states.view(*states.shape[:-1], outer, inner)
