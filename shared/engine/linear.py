"""Products with a layer's weights on the CPU, in the memory order that is fastest for the dtype.

bfloat16 weights are kept in oneDNN's blocked order, which is 1.3 to 1.5 times faster from 1 to 16 rows than
the file's; float32 ones only where they are too large for a core's cache. Where the processor has no bfloat16
matrix unit, many rows are computed in float32 instead.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_PACK_FLOAT32_BYTES = 4 << 20
_WIDE_ROWS = 256  # from here on unpacking to float32 is cheaper than slow bfloat16 products
_PACK_ROWS = 16  # the order that oneDNN picks for so many rows serves all counts


class Linear:
    """rows @ weight.T + bias for one weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._wide_bias = None if bias is None else bias.float()
        packed = _pack(weight)
        self._packed = packed is not None
        self._weight = weight if packed is None else packed

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] to [n, out] of the same dtype: the weight's, or float32."""
        if rows.dtype != self._weight.dtype:
            wide = self._weight.to_dense(torch.float32) if self._packed else self._weight.float()
            return F.linear(rows, wide, self._wide_bias)
        if not self._packed:
            return F.linear(rows, self._weight, self._bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return product


def working_dtype(rows: int, dtype: torch.dtype) -> torch.dtype:
    """In which dtype a step of so many rows is computed, for weights of `dtype`."""
    if dtype == torch.bfloat16 and rows >= _WIDE_ROWS and not has_matrix_unit():
        return torch.float32
    return dtype


def has_matrix_unit() -> bool:
    """Whether bfloat16 products run on AMX tiles."""
    return bool(torch.cpu._is_amx_tile_supported())


def _pack(weight: Tensor) -> Tensor | None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    if weight.dtype == torch.float32 and weight.nbytes < _PACK_FLOAT32_BYTES:
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
    return packed
