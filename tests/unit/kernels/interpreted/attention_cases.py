"""Attention under the interpreter against float64."""

from __future__ import annotations

import torch

from shared.kernels import paged_attention
from shared.kernels.extend_attention import extend_attention
from shared.kernels.launch import Tile, attention_tile
from tests.unit.kernels.batches import NAN, error, make_batch, truth, untouched_floats

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


def check(
    lengths: list[tuple[int, int]],
    *,
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int] = (2, 1),
    head_dim: int = 64,
    block_tokens: int = 16,
    window: int | None = None,
    softcap: float | None = None,
    padding_rows: int = 0,
    tile: Tile | None = None,
    splits: int | None = None,
    min_split_keys: int = 16,
) -> None:
    batch = make_batch(
        lengths,
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        block_tokens=block_tokens,
        dtype=dtype,
        padding_rows=padding_rows,
    )
    if softcap is not None:
        batch.scale = 1.0  # so that the cap bends the scores
    if splits is None:
        extend_attention(*batch.arguments, batch.scale, window=window, softcap=softcap, out=batch.out)
    else:
        tile = tile or attention_tile("interpreter", dtype, head_dim, 1)
        paged_attention.launch(
            *batch.arguments, batch.scale, window, softcap, batch.out, tile, splits, min_split_keys
        )
    found = error(batch.out, truth(batch, window, softcap))
    assert found < TOLERANCE[dtype], f"error {found}"


def decode() -> None:
    check([(40, 1), (0, 1), (16, 1)], heads=(4, 2))


def extend_odd_sizes() -> None:
    check([(37, 5), (3, 13), (0, 7)], heads=(3, 1), block_tokens=8)


def empty_items() -> None:
    check([(9, 0), (5, 2), (0, 0), (31, 1), (7, 0)])


def nothing_but_empty_items() -> None:
    check([(9, 0), (0, 0)])


def padding_rows_stay_untouched() -> None:
    check([(20, 2), (3, 1)], padding_rows=3, splits=3)
    check([(20, 2), (3, 1)], padding_rows=3)


def tile_wider_than_a_prompt() -> None:
    check([(0, 3)], tile=Tile(64, 32, 64, 1, 1, 1), splits=1)


def rows_of_a_token_in_two_tiles() -> None:
    check([(10, 11), (2, 9)], heads=(5, 1), tile=Tile(16, 16, 64, 1, 1, 1), splits=1)


def head_dim_96() -> None:
    check([(20, 3)], head_dim=96)


def head_dim_128_in_chunks() -> None:
    check([(20, 3)], head_dim=128)


def head_dim_96_in_chunks() -> None:
    check([(20, 3)], head_dim=96, tile=Tile(16, 16, 32, 1, 1, 4), splits=2)


def head_dim_256() -> None:
    check([(20, 3)], head_dim=256)


def head_dim_80_masked() -> None:
    check([(20, 3)], head_dim=80)


def bfloat16() -> None:
    check([(20, 3), (0, 2)], dtype=torch.bfloat16)
    check([(40, 1)], dtype=torch.bfloat16, head_dim=96, splits=2)


def float16() -> None:
    check([(20, 3), (0, 2)], dtype=torch.float16)


def window_inside_one_tile() -> None:
    check([(40, 4), (2, 5)], window=3)


def window_over_many_tiles() -> None:
    check([(90, 6)], window=50, tile=Tile(16, 16, 64, 1, 1, 4), splits=1)


def window_with_splits() -> None:
    check([(90, 6), (0, 1)], window=50, tile=Tile(16, 16, 64, 1, 1, 4), splits=3)


def window_of_one() -> None:
    check([(40, 3), (0, 2)], window=1, splits=2)


def window_longer_than_context() -> None:
    check([(20, 3)], window=10_000)
    check([(20, 3)], window=2**40)


def softcap() -> None:
    check([(20, 3)], softcap=5.0)


def softcap_and_window_with_splits() -> None:
    check([(70, 3)], softcap=5.0, window=33, splits=2)


def splits_that_end_at_odd_places() -> None:
    for splits in (2, 3, 7):
        check([(75, 2), (3, 1), (15, 1)], tile=Tile(16, 16, 64, 1, 1, 8), splits=splits)


def more_splits_than_keys() -> None:
    check([(2, 1)], splits=8)


def split_whose_rows_see_nothing() -> None:
    # The last split holds keys that only the last rows see: the first ones get weight 0, not NaN.
    check([(16, 33)], heads=(1, 1), tile=Tile(64, 16, 64, 1, 1, 8), splits=4)


def tiled_prefill_after_a_prefix() -> None:
    check([(33, 70)], heads=(1, 1), tile=Tile(64, 32, 64, 1, 1, 1), splits=1)


def public_entry_splits_long_contexts() -> None:
    check([(700, 1)], heads=(2, 1), block_tokens=64)


def far_blocks(stride: int, ids: list[int]) -> None:
    """Blocks whose offsets pass 2^31 elements, over memory that is never touched."""
    batch = make_batch([(20, 3), (5, 1)], q_heads=2, kv_heads=1, head_dim=64, block_tokens=16)
    used = [(0, 0), (0, 1), (1, 0)]
    old = [int(batch.block_tables[at]) for at in used]
    extent = batch.k_cache[0].numel()
    memory = untouched_floats(max(ids) * stride + 2 * extent)
    for name, offset in (("k_cache", 0), ("v_cache", extent)):
        near = getattr(batch, name)
        far = memory[offset:].as_strided((max(ids) + 1, 1, 16, 64), (stride, extent, 64, 1))
        for at, block in enumerate(ids):
            far[block] = near[old[at]]
        setattr(batch, name, far)
    for at, where in enumerate(used):
        batch.block_tables[where] = ids[at]
    assert max(ids) * stride > 2**31
    for splits in (1, 2):
        batch.out.fill_(NAN)
        tile = Tile(16, 16, 64, 1, 1, 4)
        paged_attention.launch(*batch.arguments, batch.scale, None, None, batch.out, tile, splits, 16)
        assert error(batch.out, truth(batch)) < TOLERANCE[torch.float32]


def huge_block_stride() -> None:
    far_blocks(2**30 + 64, [2, 0, 1])


def huge_block_ids() -> None:
    far_blocks(2048, [1_048_579, 5, 1_050_001])


CASES = (
    decode,
    extend_odd_sizes,
    empty_items,
    nothing_but_empty_items,
    padding_rows_stay_untouched,
    tile_wider_than_a_prompt,
    rows_of_a_token_in_two_tiles,
    head_dim_96,
    head_dim_128_in_chunks,
    head_dim_96_in_chunks,
    head_dim_256,
    head_dim_80_masked,
    bfloat16,
    float16,
    window_inside_one_tile,
    window_over_many_tiles,
    window_with_splits,
    window_of_one,
    window_longer_than_context,
    softcap,
    softcap_and_window_with_splits,
    splits_that_end_at_odd_places,
    more_splits_than_keys,
    split_whose_rows_see_nothing,
    tiled_prefill_after_a_prefix,
    public_entry_splits_long_contexts,
    huge_block_stride,
    huge_block_ids,
)
