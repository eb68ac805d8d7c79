"""What no forward of the model can beat here: its matrix products alone by the fastest way that torch offers,
and its bytes over memory bandwidth; both measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shared.engine.model_config import ModelConfig

_ROUNDS = 5
_READ_BYTES = 512 << 20  # beyond what caches of this run's other work leave
_PACK_ROWS = 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a model in a dtype; `bandwidth`: bytes/s of reading memory."""

    config: ModelConfig
    dtype: torch.dtype
    bandwidth: float

    @property
    def weight_bytes(self) -> int:
        """Of the layers and the head."""
        config = self.config
        layer = sum(rows * columns for rows, columns in shapes(config))
        return (config.layers * layer + config.vocab * config.hidden) * self.dtype.itemsize

    def kv_bytes(self, tokens: int) -> int:
        """Of the keys and values of so many tokens."""
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_dim * tokens * self.dtype.itemsize

    def products(self, rows: int, drawn: int) -> float:
        """Seconds of the products of a step, by the fastest way for each shape."""
        config = self.config
        layer = sum(_fastest(shape, rows, self.dtype, config.layers) for shape in shapes(config))
        return layer + _fastest((config.vocab, config.hidden), drawn, self.dtype, 1)


def shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """[out, in] of a layer's fused products."""
    width = config.heads * config.head_dim
    return [
        (width + 2 * config.kv_heads * config.head_dim, config.hidden),
        (config.hidden, width),
        (2 * config.ffn, config.hidden),
        (config.hidden, config.ffn),
    ]


def measure(config: ModelConfig, dtype: str, threads: int) -> Bounds:
    """Bounds of a model here."""
    torch.set_num_threads(threads)
    memory = torch.ones(_READ_BYTES // 4)
    seconds = _median(memory.sum)
    return Bounds(config, getattr(torch, dtype), _READ_BYTES / seconds)


@torch.inference_mode()
def _fastest(shape: tuple[int, int], rows: int, dtype: torch.dtype, layers: int) -> float:
    """Seconds of `layers` products with different weights (so that none is in a cache) by the best way."""
    return min(_median(way) for way in _ways(shape, rows, dtype, layers))


def _ways(
    shape: tuple[int, int], rows: int, dtype: torch.dtype, layers: int
) -> Iterator[Callable[[], object]]:
    weights = [torch.randn(shape).to(dtype) for _ in range(layers)]
    given = torch.randn(rows, shape[1]).to(dtype)
    yield lambda: [F.linear(given, weight) for weight in weights]
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS) for weight in weights]
    pointwise = torch.ops.mkldnn._linear_pointwise
    yield lambda: [pointwise(given, weight, None, "none", [], "") for weight in packed]
    if rows == 1:
        vector: Tensor = given[0]
        yield lambda: [torch.mv(weight, vector) for weight in weights]


def _median(run: Callable[[], object]) -> float:
    run()
    taken = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
