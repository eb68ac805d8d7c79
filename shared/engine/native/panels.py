"""Weights in the order that the compiled products read them."""

from __future__ import annotations

import torch
from torch import Tensor

from shared.engine.native.library import Weight


class Panels:
    """A weight, and its bias, in panels of 2 * lanes columns (see `model.h`); float32 or bfloat16.

    A panel has two halves of `lanes` columns. In float32 a row of it is one half after the other, in bfloat16
    their columns come in turns, so that a 32-bit word holds one of each.
    """

    def __init__(self, halves: Tensor, bias: Tensor | None, columns: int) -> None:
        """`halves`: [panels, 2, lanes, in]; `bias`: float32 [panels, 2, lanes]; `columns`: of the result."""
        in_turns = halves.dtype == torch.bfloat16
        self._panels = halves.permute((0, 3, 2, 1) if in_turns else (0, 3, 1, 2)).contiguous()
        self._bias = bias
        self.columns = columns

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, lanes: int) -> Panels:
        """Of a weight [out, in] and a bias [out]."""
        halves = _filled(weight, 2 * lanes).view(-1, 2, lanes, weight.shape[1])
        wide = None if bias is None else _filled(bias.float(), 2 * lanes).view(-1, 2, lanes)
        return cls(halves, wide, len(weight))

    @classmethod
    def gated(cls, weight: Tensor, bias: Tensor | None, lanes: int) -> Panels:
        """Of [2 * out, in], the gate before what it gates: the first half of a panel gates the second."""
        halves = _paired(weight, lanes)
        wide = None if bias is None else _paired(bias.float(), lanes).contiguous()
        return cls(halves, wide, len(weight) // 2)

    def address(self) -> Weight:
        """For the library, as long as this object lives."""
        bias = None if self._bias is None else self._bias.data_ptr()
        count, depth = self._panels.shape[:2]
        return Weight(self._panels.data_ptr(), bias, self.columns, depth, count)


def _paired(weight: Tensor, lanes: int) -> Tensor:
    """[2 * out, ...] to [panels, 2, lanes, ...]."""
    gate, up = (_filled(half, lanes).view(-1, lanes, *weight.shape[1:]) for half in weight.chunk(2))
    return torch.stack((gate, up), 1)


def _filled(rows: Tensor, multiple: int) -> Tensor:
    """With rows of zeros up to a whole number of `multiple` rows."""
    missing = -len(rows) % multiple
    return rows if missing == 0 else torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))
