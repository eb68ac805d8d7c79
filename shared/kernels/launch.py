"""Launch settings: a table by device kind, precision, head dimension and number of query rows, and its look-
up.

Pure data and arithmetic: no tuning, no triton, nothing learnt at run time. Every attention entry is compiled
    ahead of time for its target by `scripts/check_kernels.py`, which fails where one spills registers or
    needs too much memory.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

Precision = Literal["half", "single"]
Rows = Literal["few", "split", "tiled"]

HEAD_DIMS = (64, 128, 256)
"""Tile widths; a head dimension between two of them runs masked in the wider one."""

FEW_ROWS = 16
SPLIT_ROWS = 256
"""Query rows per KV head up to which the keys are split finely over programs; above it row tiles fill the
device.
"""

MIN_SPLIT_KEYS = 256
"""A split shorter than this costs more to combine than it saves."""

PROGRAMS_PER_PROCESSOR = 2
"""Programs that each multiprocessor should find at once: below it keys are split."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program of the attention kernel is cut."""

    rows: int
    """Query rows (token, head of the group) per program."""
    keys: int
    """Keys per step."""
    dim_chunk: int
    """Head dimensions per product of q and k; the whole tile width but for float32, which runs on plain FMA
    units.
    """
    warps: int
    stages: int
    """Software pipeline depth; one stage goes to the block ids that the key addresses depend on."""
    max_splits: int


@dataclass(frozen=True, slots=True)
class Simple:
    """A kernel without a shape of its own: elements per program along its one tiled axis, and warps."""

    block: int
    warps: int


COMBINE_WARPS = 2
ROTATE = Simple(block=8, warps=4)
COPY = Simple(block=1024, warps=4)
SILU = Simple(block=1024, warps=4)
DRAW = Simple(block=1024, warps=4)
NORM = Simple(block=1024, warps=4)
"""`block`: elements per program where rows are narrow. Wider rows take one program each, with more warps."""

Key = tuple[Precision, int, Rows]

_AMPERE: dict[Key, Tile] = {
    ("half", 64, "few"): Tile(16, 64, 64, 4, 5, 64),
    ("half", 64, "split"): Tile(64, 64, 64, 4, 4, 32),
    ("half", 64, "tiled"): Tile(128, 64, 64, 8, 4, 8),
    ("half", 128, "few"): Tile(16, 64, 128, 4, 4, 64),
    ("half", 128, "split"): Tile(64, 32, 128, 4, 4, 32),
    ("half", 128, "tiled"): Tile(128, 64, 128, 8, 4, 8),
    ("half", 256, "few"): Tile(16, 32, 256, 4, 4, 64),
    ("half", 256, "split"): Tile(64, 32, 256, 8, 4, 32),
    ("half", 256, "tiled"): Tile(64, 32, 256, 8, 4, 8),
    ("single", 64, "few"): Tile(16, 32, 64, 4, 3, 64),
    ("single", 64, "tiled"): Tile(64, 16, 32, 8, 4, 16),
    ("single", 128, "few"): Tile(16, 32, 32, 4, 4, 64),
    ("single", 128, "tiled"): Tile(32, 16, 32, 8, 4, 16),
    ("single", 256, "few"): Tile(16, 16, 32, 4, 4, 64),
    ("single", 256, "tiled"): Tile(32, 16, 32, 8, 4, 16),
}

_HOPPER = _AMPERE | {
    ("half", 64, "split"): Tile(64, 64, 64, 4, 5, 32),
    ("half", 64, "tiled"): Tile(128, 128, 64, 8, 4, 8),
    ("half", 128, "few"): Tile(16, 64, 128, 4, 5, 64),
    ("half", 128, "split"): Tile(64, 64, 128, 8, 4, 32),
    ("half", 256, "split"): Tile(64, 64, 256, 8, 4, 32),
    ("half", 256, "tiled"): Tile(128, 32, 256, 8, 4, 8),
}

_BLACKWELL = _AMPERE | {
    ("half", 128, "few"): Tile(16, 64, 128, 4, 5, 64),
    ("half", 128, "split"): Tile(64, 64, 128, 8, 4, 32),
}

_CDNA3: dict[Key, Tile] = {
    ("half", 64, "few"): Tile(16, 64, 64, 4, 2, 64),
    ("half", 64, "split"): Tile(64, 64, 64, 4, 2, 32),
    ("half", 64, "tiled"): Tile(128, 64, 64, 4, 2, 8),
    ("half", 128, "few"): Tile(16, 64, 128, 4, 2, 64),
    ("half", 128, "split"): Tile(64, 64, 128, 4, 2, 32),
    ("half", 128, "tiled"): Tile(128, 64, 128, 8, 2, 8),
    ("half", 256, "few"): Tile(16, 32, 256, 4, 2, 64),
    ("half", 256, "split"): Tile(64, 32, 256, 8, 2, 32),
    ("half", 256, "tiled"): Tile(64, 32, 256, 8, 2, 8),
    ("single", 64, "few"): Tile(16, 32, 64, 4, 2, 64),
    ("single", 64, "tiled"): Tile(64, 32, 64, 4, 2, 16),
    ("single", 128, "few"): Tile(16, 32, 128, 4, 2, 64),
    ("single", 128, "tiled"): Tile(64, 32, 128, 4, 2, 16),
    ("single", 256, "few"): Tile(16, 16, 256, 4, 2, 64),
    ("single", 256, "tiled"): Tile(32, 16, 64, 4, 2, 16),
}

_PRECISIONS: tuple[Precision, ...] = ("half", "single")
_INTERPRETER_ROWS: dict[Rows, int] = {"few": 16, "split": 32, "tiled": 64}
_INTERPRETER: dict[Key, Tile] = {
    (precision, width, rows): Tile(
        block_rows, 32, min(width, 64) if precision == "single" else width, 1, 1, 4
    )
    for precision in _PRECISIONS
    for width in HEAD_DIMS
    for rows, block_rows in _INTERPRETER_ROWS.items()
}

ATTENTION: MappingProxyType[str, dict[Key, Tile]] = MappingProxyType(
    {
        "sm_80": _AMPERE,
        "sm_89": _AMPERE,
        "sm_90": _HOPPER,
        "sm_100": _BLACKWELL,
        "gfx942": _CDNA3,
        "interpreter": _INTERPRETER,
    }
)
"""By device kind. Float32 has two sizes only: `split` rows use its `tiled` entry."""


def interpreting() -> bool:
    """Whether Triton's interpreter stands in for a device (its own switch, read by triton itself when
    imported).
    """
    return os.environ.get("TRITON_INTERPRET") == "1"


def runs_kernels(tensor: torch.Tensor) -> bool:
    """Whether the Triton kernels run on this tensor; otherwise the torch reference does."""
    return tensor.is_cuda or interpreting()


@functools.cache
def device_kind(device: torch.device) -> str:
    """The row of the table for a device. Parts without a row of their own use the nearest that fits them."""
    if device.type != "cuda":
        return "interpreter"
    if torch.version.hip is not None:
        return "gfx942"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) == (8, 0):
        return "sm_80"
    if major == 9:
        return "sm_90"
    if major in (10, 11):
        return "sm_100"
    if major < 8:
        raise ValueError(f"compute capability {major}.{minor} is too old: the kernels need 8.0 or newer")
    return "sm_89"  # 8.6, 8.9 and consumer Blackwell: the small shared memory, no tcgen05


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors (compute units) of a device; the interpreter counts as 4, so that tests split keys."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def precision_of(dtype: torch.dtype) -> Precision:
    return "single" if dtype == torch.float32 else "half"


def tile_width(head_dim: int) -> int:
    """The tile that holds a head dimension."""
    for width in HEAD_DIMS:
        if head_dim <= width:
            return width
    raise ValueError(f"head_dim {head_dim} is larger than {HEAD_DIMS[-1]}, the widest that the kernels serve")


def rows_bucket(rows: int) -> Rows:
    if rows <= FEW_ROWS:
        return "few"
    return "split" if rows <= SPLIT_ROWS else "tiled"


def attention_tile(kind: str, dtype: torch.dtype, head_dim: int, rows: int) -> Tile:
    """The tile for work items of about `rows` query rows (new tokens x group) per KV head."""
    table = ATTENTION[kind]
    precision = precision_of(dtype)
    width = tile_width(head_dim)
    bucket = rows_bucket(rows)
    return table.get((precision, width, bucket)) or table[precision, width, "tiled"]


def split_count(tile: Tile, programs: int, context: int, multiprocessors: int) -> int:
    """Splits of the keys: as many as fill the device, none below MIN_SPLIT_KEYS of the longest context."""
    wanted = PROGRAMS_PER_PROCESSOR * multiprocessors // max(programs, 1)
    return max(1, min(wanted, context // MIN_SPLIT_KEYS, tile.max_splits))


def norm_shape(width: int) -> tuple[int, int, int]:
    """(rows per program, tile width, warps) for rows of `width` elements."""
    block_width = 1 << (width - 1).bit_length()
    rows = max(1, NORM.block // block_width)
    return rows, block_width, min(16, max(NORM.warps, block_width // 512))
