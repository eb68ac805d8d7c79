"""Weights in the order that the compiled products read them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from shared.engine.native.library import Weight

_UNIT_DEPTH = 32  # of `lanes.h`


class Panels:
    """A weight, and its bias, in panels of 2 * lanes columns (see `model.h`); float32 or bfloat16.

    A panel has two halves of `lanes` columns, a row of it one word of each. In bfloat16 a word holds two
    neighbouring places of the depth, which is filled up with zeros to a multiple of 32: the order that matrix
    units read.
    """

    def __init__(self, halves: Tensor, bias: Tensor | None, columns: int) -> None:
        """`halves`: [panels, 2, lanes, in]; `bias`: float32 [panels, 2, lanes]; `columns`: of the result."""
        self._depth = halves.shape[3]
        if halves.dtype == torch.bfloat16:
            missing = -self._depth % _UNIT_DEPTH
            filled = F.pad(halves, (0, missing)) if missing else halves
            pairs = filled.reshape(*filled.shape[:3], -1, 2)
            self._panels = pairs.permute(0, 3, 1, 2, 4).contiguous()
        else:
            self._panels = halves.permute(0, 3, 1, 2).contiguous()
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
        return Weight(self._panels.data_ptr(), bias, self.columns, self._depth, len(self._panels))


def _paired(weight: Tensor, lanes: int) -> Tensor:
    """[2 * out, ...] to [panels, 2, lanes, ...]."""
    gate, up = (_filled(half, lanes).view(-1, lanes, *weight.shape[1:]) for half in weight.chunk(2))
    return torch.stack((gate, up), 1)


def _filled(rows: Tensor, multiple: int) -> Tensor:
    """With rows of zeros up to a whole number of `multiple` rows."""
    missing = -len(rows) % multiple
    return rows if missing == 0 else torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))
