"""A mixture of experts on a device: rows sorted by expert, one product of each expert that was picked.

How many rows an expert gets is read back once a layer, so such a model's steps are not recorded as graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shared.engine.checkpoint import ExpertTensors
from shared.engine.model_config import Experts as ExpertShape
from shared.kernels.rows import silu_mul


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts of one layer: `router` [count, hidden]; `gate_up` [count, 2 ffn, hidden], `down` back."""

    shape: ExpertShape
    router: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def load(cls, tensors: ExpertTensors, device: torch.device) -> Experts:
        """Stack the experts on the device."""
        gate_up = torch.stack([each.to(device) for each in tensors.gate_up])
        down = torch.stack([each.to(device) for each in tensors.down])
        return cls(tensors.shape, tensors.router.to(device), gate_up, down)

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] to the same: the chosen experts' outputs, weighted by the router."""
        chances = torch.softmax(F.linear(rows, self.router), -1, dtype=torch.float32)
        weight, chosen = chances.topk(self.shape.per_token, -1)
        if self.shape.normalised:
            weight = weight / weight.sum(-1, keepdim=True)
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.shape.count).tolist()
        total = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        for number, picks in enumerate(torch.split(order, counts)):
            if len(picks):
                at = picks // self.shape.per_token
                inner = silu_mul(F.linear(rows[at], self.gate_up[number]))
                part = F.linear(inner, self.down[number])
                total.index_add_(0, at, part * weight.flatten()[picks, None])
        return total.to(rows.dtype)
