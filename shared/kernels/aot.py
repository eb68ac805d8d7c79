"""What is compiled ahead of time for each target, without a device: the launch table's entries as argument
lists.

Plain data: imports no triton. `scripts/check_kernels.py` compiles and judges it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from shared.kernels.launch import (
    ATTENTION,
    COMBINE_WARPS,
    COPY,
    DRAW,
    ROTATE,
    SILU,
    Tile,
    norm_shape,
)

Matrix = Literal["required", "forbidden"]

TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "gfx942")

BLOCK_TOKENS = 32

WAIVERS: dict[tuple[str, str], str] = {}
"""(target, entry) -> the measured reason why it may break a limit."""

_TRITON_NAME = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_FIXED_POINTERS = {
    "partial_ptr": "*fp32",
    "lse_ptr": "*fp32",
    "cos_ptr": "*fp32",
    "sin_ptr": "*fp32",
    "cu_seqlens_ptr": "*i32",
    "start_ptr": "*i32",
    "block_tables_ptr": "*i32",
    "positions_ptr": "*i64",
    "slots_ptr": "*i64",
    "ids_ptr": "*i64",
    "pool_ptr": "*i64",
    "staging_ptr": "*i64",
    "temperature_ptr": "*fp32",
    "seeds_ptr": "*i64",
    "choices_ptr": "*i32",
    "best_score_ptr": "*fp32",
    "best_id_ptr": "*i64",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel in one form for one target."""

    target: str
    name: str
    module: str
    """Under shared.kernels.jit."""
    kernel: str
    dtype: str
    """Of the activations: the element type of every pointer that has no fixed one."""
    constants: tuple[tuple[str, int | bool], ...]
    warps: int
    stages: int
    matrix: Matrix = "forbidden"
    """Whether the target's 16-bit matrix instruction must show, or no reduced-precision one may."""

    @property
    def key(self) -> tuple[str, str]:
        return self.target, self.name

    def pointer_type(self, parameter: str) -> str:
        """Triton's type of a pointer parameter."""
        return _FIXED_POINTERS.get(parameter, "*" + _TRITON_NAME[self.dtype])

    def digest(self, triton_version: str) -> str:
        """Changes when the kernel's source, this entry's settings or the compiler change; equal on every
        machine.
        """
        source = Path(__file__).with_name("jit") / f"{self.module}.py"
        state = json.dumps([asdict(self), triton_version], sort_keys=True).encode()
        return hashlib.blake2b(state + source.read_bytes(), digest_size=16).hexdigest()


def _attention(target: str, dtype: str, head_dim: int, width: int, rows: str, tile: Tile) -> Entry:
    return Entry(
        target,
        f"attention {dtype} {head_dim} {rows}",
        "attention",
        "paged_attention",
        dtype,
        (
            ("HEAD_DIM", head_dim),
            ("BLOCK_DIM", width),
            ("DIM_CHUNK", tile.dim_chunk),
            ("BLOCK_ROWS", tile.rows),
            ("BLOCK_KEYS", tile.keys),
            ("BLOCK_TOKENS", BLOCK_TOKENS),
            ("UPCAST", False),
        ),
        tile.warps,
        tile.stages,
        "forbidden" if dtype == "float32" else "required",
    )


def _combine(target: str, dtype: str, head_dim: int, tile: Tile) -> Entry:
    constants = (
        ("HEAD_DIM", head_dim),
        ("BLOCK_DIM", head_dim),
        ("BLOCK_ROWS", tile.rows),
        ("BLOCK_KEYS", tile.keys),
    )
    name = f"combine {dtype} {head_dim}"
    return Entry(target, name, "attention", "combine_splits", dtype, constants, COMBINE_WARPS, 2)


def _others(target: str) -> list[Entry]:
    norm_rows, norm_width, norm_warps = norm_shape(4096)
    half = "bfloat16"
    rotate = (("HALF", 64), ("BLOCK_HALF", 64), ("BLOCK_HEADS", ROTATE.block), ("BLOCK_TOKENS", BLOCK_TOKENS))
    norm = (("HAS_RESIDUAL", True), ("BLOCK_ROWS", norm_rows), ("BLOCK_WIDTH", norm_width))
    silu = (("BLOCK_WIDTH", SILU.block),)
    copy = (("BLOCK_WORDS", COPY.block),)
    draw = (("BLOCK_VOCABULARY", DRAW.block),)
    return [
        Entry(target, "kv_write", "kv_write", "rotate_and_write_kv", half, rotate, ROTATE.warps, 2),
        Entry(target, "rms_norm", "rows", "rms_norm", half, norm, norm_warps, 2),
        Entry(target, "silu_mul", "rows", "silu_mul", half, silu, SILU.warps, 2),
        Entry(target, "block_copy", "block_copy", "copy_blocks", half, copy, COPY.warps, 2),
        Entry(target, "sampling", "sampling", "draw_chunk", "float32", draw, DRAW.warps, 2),
    ]


def entries(target: str) -> list[Entry]:
    """Every entry of one target: 24, so that all targets together stay within 120.

    bfloat16 stands for both half types and each tile width for itself; float16 and the masked head dimension
    96 are compiled once each, where they differ most from what stands for them.
    """
    table = ATTENTION[target]
    found = []
    for (precision, width, rows), tile in table.items():
        dtype = "bfloat16" if precision == "half" else "float32"
        found.append(_attention(target, dtype, width, width, rows, tile))
    found.append(_attention(target, "float16", 64, 64, "few", table["half", 64, "few"]))
    found.append(_attention(target, "bfloat16", 96, 128, "tiled", table["half", 128, "tiled"]))
    found.append(_combine(target, "bfloat16", 128, table["half", 128, "few"]))
    found.append(_combine(target, "float32", 256, table["single", 256, "few"]))
    return found + _others(target)
