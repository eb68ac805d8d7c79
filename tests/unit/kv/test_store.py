"""The pool's memory: one allocation that is a tensor and bytes at once."""

import pytest
import torch

from shared.errors import ConfigError, OutOfBlocks
from shared.kv.layout import Component, Group, KvLayout, full_attention
from shared.kv.store import KvStore


def layout(dtype: str = "float32") -> KvLayout:
    return full_attention(layers=3, kv_heads=2, head_dim=8, block_tokens=4, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tensor_and_bytes_are_the_same_memory(dtype: str) -> None:
    store = KvStore(layout(dtype), 5)
    assert store.tensor.shape == (5, 3, 2, 2, 4, 8)
    assert store.tensor.dtype == getattr(torch, dtype)
    store.tensor[3] = 1.5
    words = bytes(store.view(3))
    assert len(words) == store.block_bytes == store.layout.block_bytes
    assert words == store.tensor[3].flatten().view(torch.uint8).numpy().tobytes()
    store.view(2)[:] = words
    assert torch.equal(store.tensor[2], store.tensor[3])
    assert not store.tensor[1].any()
    assert not store.tensor[4].any()


def test_a_block_is_layers_then_k_and_v_then_heads() -> None:
    store = KvStore(layout(), 2)
    store.tensor[1, 2, 1, 0, 3, 5] = 7.0
    at = (((2 * 2 + 1) * 2 + 0) * 4 + 3) * 8 + 5
    assert memoryview(store.view(1)).cast("f")[at] == 7.0


def test_views_outlive_the_store() -> None:
    store = KvStore(layout(), 2)
    view = store.view(1)
    del store
    view[:4] = b"\x01\x02\x03\x04"
    assert bytes(view[:4]) == b"\x01\x02\x03\x04"


@pytest.mark.parametrize("block", [-1, 2, 100])
def test_a_block_outside_is_an_error(block: int) -> None:
    with pytest.raises(IndexError, match=str(block)):
        KvStore(layout(), 2).view(block)


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="kv_blocks"):
        KvStore(layout(), 0)
    with pytest.raises(OutOfBlocks, match="lower kv_blocks"):
        KvStore(layout(), 1 << 60)


def test_other_layouts_are_refused_by_name() -> None:
    part = Component("k", "float32", (2, 4, 8))
    with pytest.raises(ConfigError, match="window"):
        KvStore(KvLayout(4, (Group(0, "window", 3, (part, part)),)), 2)
    with pytest.raises(ConfigError, match="equal shape"):
        KvStore(KvLayout(4, (Group(0, "full", 3, (part, Component("v", "float32", (2, 4, 6)))),)), 2)
    with pytest.raises(ConfigError, match="one group"):
        KvStore(KvLayout(4, ()), 2)
