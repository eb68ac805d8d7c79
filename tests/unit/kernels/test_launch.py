"""The launch table: complete, within limits, and looked up as its words say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from shared.kernels import aot, launch
from shared.kernels.warmup import CompilationCounter, ModelShape, compiled_kernels, warm_up

ROOT = Path(__file__).resolve().parents[3]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("kind", list(launch.ATTENTION))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_shape_has_a_tile(kind: str, dtype: torch.dtype) -> None:
    for head_dim, rows in product((64, 80, 96, 128, 256), (1, 16, 17, 256, 257, 100_000)):
        tile = launch.attention_tile(kind, dtype, head_dim, rows)
        assert launch.tile_width(head_dim) % tile.dim_chunk == 0
        assert tile.rows >= 16
        assert tile.keys >= 16
        for power in (tile.rows, tile.keys, tile.dim_chunk, tile.warps):
            assert power & (power - 1) == 0
        assert launch.MIN_SPLIT_KEYS % tile.keys == 0


def test_decode_has_the_smallest_tile() -> None:
    for kind in launch.ATTENTION:
        for dtype in DTYPES:
            few, many = (launch.attention_tile(kind, dtype, 128, rows) for rows in (1, 10_000))
            assert few.rows < many.rows
            assert few.max_splits >= many.max_splits


def test_a_head_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim 257"):
        launch.tile_width(257)


def test_splits_fill_the_device_and_stay_long_enough() -> None:
    tile = launch.attention_tile("sm_90", torch.bfloat16, 128, 1)
    assert launch.split_count(tile, programs=8, context=65_536, multiprocessors=132) == 33
    assert launch.split_count(tile, programs=8, context=1_000, multiprocessors=132) == 3
    assert launch.split_count(tile, programs=8, context=100, multiprocessors=132) == 1
    assert launch.split_count(tile, programs=1, context=10**6, multiprocessors=132) == tile.max_splits
    assert launch.split_count(tile, programs=5_000, context=10**6, multiprocessors=132) == 1


@pytest.mark.parametrize("width", [1, 37, 64, 576, 4096, 32768])
def test_norm_rows_fit_their_tile(width: int) -> None:
    rows, block, warps = launch.norm_shape(width)
    assert block >= width
    assert rows * block <= max(launch.NORM.block, block)
    assert 1 <= warps <= 16


def test_entries_stay_within_the_budget() -> None:
    everything = [entry for target in aot.TARGETS for entry in aot.entries(target)]
    assert len(everything) <= 120
    assert len({entry.key for entry in everything}) == len(everything)
    assert set(aot.WAIVERS) <= {entry.key for entry in everything}


def test_every_tile_of_the_table_is_compiled() -> None:
    for target in aot.TARGETS:
        compiled = {
            (
                constants["BLOCK_DIM"],
                constants["BLOCK_ROWS"],
                constants["BLOCK_KEYS"],
                entry.warps,
                entry.stages,
            )
            for entry in aot.entries(target)
            if entry.kernel == "paged_attention"
            for constants in [dict(entry.constants)]
        }
        for (_, width, _), tile in launch.ATTENTION[target].items():
            assert (width, tile.rows, tile.keys, tile.warps, tile.stages) in compiled


def test_a_digest_follows_settings_and_compiler() -> None:
    one, other = aot.entries("sm_90")[:2]
    assert one.digest("3.7.1") == aot.entries("sm_90")[0].digest("3.7.1")
    assert len({one.digest("3.7.1"), one.digest("3.7.2"), other.digest("3.7.1")}) == 3


def test_counter_counts_from_ready() -> None:
    counter = CompilationCounter()
    assert counter.after_ready == 0
    counter.mark_ready()
    assert counter.after_ready == 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_counter_sees_a_kernel_in_tritons_cache() -> None:
    from shared.kernels.jit.rows import silu_mul

    counter = CompilationCounter()
    counter.mark_ready()
    before = compiled_kernels()
    silu_mul.device_caches[99] = ({"a form": object()}, {}, None, None, None)
    try:
        assert compiled_kernels() == before + 1
        assert counter.after_ready == 1
    finally:
        del silu_mul.device_caches[99]


def test_warm_up_is_nothing_on_a_cpu() -> None:
    pool = torch.full((1, 1, 2, 1, 4, 8), float("nan"))
    warm_up(ModelShape(2, 1, 8, 16, 32, 50), pool)
    assert bool(pool.isnan().all())
    assert compiled_kernels() == 0


def test_the_cpu_path_needs_no_triton() -> None:
    """Importing and running every wrapper on CPU tensors imports neither triton nor a jit module."""
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from shared.kernels import extend_attention, kv_write, block_copy, rows, sampling, warmup, aot\n"
        "rows.silu_mul(torch.zeros(1, 4)); rows.rms_norm(torch.zeros(1, 4), torch.ones(4), 1e-5)\n"
        "assert not [m for m in sys.modules if m.startswith('shared.kernels.jit')]\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=50)
