"""Twins of a device's blocks: what passes between them, and when."""

from __future__ import annotations

import itertools

import hypothesis
import hypothesis.strategies as st
import torch

from shared.engine.device.store import DeviceStore, runs
from shared.kv.layout import full_attention

LAYOUT = full_attention(layers=2, kv_heads=1, head_dim=4, block_tokens=2, dtype="float32")


@hypothesis.given(st.lists(st.integers(0, 40)))
def test_runs_are_the_blocks_in_as_few_copies_as_there_are_gaps(blocks: list[int]) -> None:
    found = runs(blocks)
    assert [block for first, end in found for block in range(first, end)] == sorted(set(blocks))
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(found))


def test_bytes_cross_when_told_to_and_not_before() -> None:
    store = DeviceStore(LAYOUT, 4, torch.device("cpu"))
    store.view(2)[:] = torch.arange(32, dtype=torch.float32).numpy().tobytes()
    assert not store.tensor.any()
    store.landed(2)
    store.begin()
    assert store.tensor[2].flatten().tolist() == list(range(32))
    store.tensor[3] = 7.0
    store.tensor[1] = 5.0
    store.save([3])
    store.finish()
    assert set(store.view(3).cast("B").cast("f")) == {7.0}
    assert not any(store.view(1))
