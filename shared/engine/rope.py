"""Rotary embedding on the CPU, in the checkpoints' order of a head: dimension i rotates with i + d/2.

Five plain vector operations a layer; one complex product over pairs takes six times as long from 16 rows on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Turns:
    """Rotations of a step's rows, float32 [rows, 1, head_dim]; `sin` is negative for the first half."""

    cos: Tensor
    sin: Tensor


class Rotary:
    """Cosines and sines by position, made as far as they are needed."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self._frequencies = frequencies(rope, head_dim)
        self._cos = self._sin = torch.empty(0, head_dim)

    def at(self, positions: Tensor, highest: int) -> Turns:
        """For int64 [rows] positions up to `highest`."""
        if highest >= len(self._cos):
            length = max(1024, 1 << highest.bit_length())
            angles = torch.arange(length, dtype=torch.float32)[:, None] * self._frequencies
            self._cos = angles.cos().repeat(1, 2)
            self._sin = torch.cat((-angles.sin(), angles.sin()), 1)
        return Turns(self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1))


def rotate_(states: Tensor, turns: Turns) -> None:
    """Rotate [rows, heads, head_dim] in place; computed in float32."""
    wide = states.float()
    turned = wide * turns.cos
    turned.addcmul_(torch.roll(wide, wide.shape[-1] // 2, -1), turns.sin)
    states.copy_(turned)
