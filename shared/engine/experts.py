"""A mixture of experts in place of an MLP: each row goes through the few experts that its router picks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shared.engine.linear import Linear
from shared.engine.model_config import Experts


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """Experts of one layer: `router` [count, hidden], each `gate_up` to 2 ffn, `down` back."""

    shape: Experts
    router: Linear
    gate_up: list[Linear]
    down: list[Linear]

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] to the same shape, float32: the chosen experts' outputs weighted by the router."""
        chances = torch.softmax(self.router(rows), -1, dtype=torch.float32)
        weight, chosen = chances.topk(self.shape.per_token, -1)
        if self.shape.normalised:
            weight = weight / weight.sum(-1, keepdim=True)
        total = torch.zeros(rows.shape, dtype=torch.float32)
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.shape.count).tolist()
        for number, picks in enumerate(torch.split(order, counts)):
            if len(picks):
                at = picks // self.shape.per_token
                gate, up = self.gate_up[number](rows[at]).chunk(2, -1)
                part = self.down[number](F.silu(gate).mul_(up))
                total.index_add_(0, at, part * weight.flatten()[picks, None])
        return total
