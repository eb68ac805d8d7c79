"""A step's integers on the device, padded to shapes that graphs are recorded for."""

from __future__ import annotations

from random import Random

import hypothesis
import hypothesis.strategies as st
import torch

from shared.engine.api import WorkItem
from shared.engine.device.batch import Buffers, Shape, fitting, shapes
from shared.engine.device.block_rows import BlockRows

CPU = torch.device("cpu")
BLOCK = 4
MOST = Shape(512, 16)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.lists(st.integers(1, 90), min_size=1, max_size=24))
def test_the_smallest_shape_that_holds_a_step(lengths: list[int]) -> None:
    known = shapes(MOST)
    tokens, items = sum(lengths), len(lengths)
    chosen = fitting(known, tokens, items)
    assert chosen.tokens >= tokens
    assert chosen.items >= items
    fit = [each for each in known if each.tokens >= tokens and each.items >= items]
    assert chosen == (fit[0] if fit else Shape(tokens, items))


def test_every_count_of_decodes_has_a_shape() -> None:
    known = shapes(Shape(512, 64))
    assert all(fitting(known, count, count) in known for count in range(1, 65))
    assert all(fitting(known, 64 + count, count + 1) in known for count in range(64))


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=7), st.randoms()
)
def test_a_filled_batch(spans: list[tuple[int, int]], choose: Random) -> None:
    blocks = iter(choose.sample(range(1000), 7 * 13))
    items = [
        WorkItem(
            seq,
            start,
            tuple(choose.randrange(100) for _ in range(new)),
            tuple(next(blocks) for _ in range(-(-(start + new) // BLOCK))),
        )
        for seq, (start, new) in enumerate(spans)
    ]
    tokens = sum(new for _, new in spans)
    shape = Shape(tokens + 3, len(items) + 2)
    buffers = Buffers(Shape(512, 16), 30, BLOCK, CPU)
    batch = buffers.fill(shape, items, BlockRows())
    row = 0
    for at, item in enumerate(items):
        for offset, token in enumerate(item.ids):
            position = item.start + offset
            assert batch.ids[row] == token
            assert batch.positions[row] == position
            assert batch.slots[row] == item.blocks[position // BLOCK] * BLOCK + position % BLOCK
            row += 1
        assert batch.last[at] == row - 1
        assert batch.bounds[at + 1] == row
        assert batch.start[at] == item.start
        assert batch.tables[at, : len(item.blocks)].tolist() == list(item.blocks)
    assert batch.slots[row:].tolist() == [-1] * 3
    assert batch.bounds[len(items) :].tolist() == [tokens] * 3


def test_parts_start_at_equal_alignments_whatever_the_shape() -> None:
    buffers = Buffers(MOST, 33, BLOCK, CPU)
    for shape in (*shapes(MOST), Shape(13, 7), Shape(300, 3)):
        batch = buffers.batch(shape)
        parts = (batch.ids, batch.positions, batch.slots, batch.last, batch.bounds, batch.start, batch.tables)
        base = buffers.batch(Shape(1, 1))
        assert all(part.data_ptr() % 16 == base.ids.data_ptr() % 16 for part in parts[:4])
        assert all(part.data_ptr() % 16 == base.bounds.data_ptr() % 16 for part in parts[4:])
        assert batch.tables.stride(0) % 16 == 0


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=40)), max_size=30)
)
def test_rows_follow_any_change_of_a_table(changes: list[tuple[int, list[int]]]) -> None:
    rows = BlockRows()
    for seq, blocks in changes:
        assert rows.row(seq, tuple(blocks)).tolist() == blocks
    rows.drop([0, 1, 2])
    assert len(rows) == 0
