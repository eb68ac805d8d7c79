from __future__ import annotations

import msgspec
import pytest

from shared.errors import ConfigError
from shared.kv.layout import full_attention

KNOWN = {"layers": 30, "kv_heads": 3, "head_dim": 64, "block_tokens": 32, "dtype": "float32"}


def test_bytes_of_a_block() -> None:
    layout = full_attention(layers=30, kv_heads=3, head_dim=64, block_tokens=32, dtype="float32")
    assert layout.block_bytes == 30 * 2 * 3 * 32 * 64 * 4
    half = full_attention(layers=30, kv_heads=3, head_dim=64, block_tokens=32, dtype="bfloat16")
    assert half.block_bytes * 2 == layout.block_bytes
    assert half.block_bytes == 23_040 * 32


def test_digest_golden() -> None:
    layout = full_attention(layers=30, kv_heads=3, head_dim=64, block_tokens=32, dtype="float32")
    assert layout.digest().hex() == "2a3f90ceb3926201e4abd8d4334440f5"
    assert layout.describe() == ("block_tokens=32 full:30xk[3, 32, 64]:float32 full:30xv[3, 32, 64]:float32")


@pytest.mark.parametrize(
    "change",
    [{"layers": 29}, {"kv_heads": 1}, {"head_dim": 128}, {"block_tokens": 64}, {"dtype": "bfloat16"}],
)
def test_digest_and_text_show_every_difference(change: dict[str, object]) -> None:
    base = full_attention(layers=30, kv_heads=3, head_dim=64, block_tokens=32, dtype="float32")
    other = full_attention(**{**KNOWN, **change})  # type: ignore[arg-type]
    assert other.digest() != base.digest()
    assert other.describe() != base.describe()


def test_a_layout_travels_whole() -> None:
    layout = full_attention(layers=2, kv_heads=1, head_dim=4, block_tokens=8, dtype="float16")
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=type(layout))
    assert again == layout


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(ConfigError, match=r"int7.*float32"):
        full_attention(layers=1, kv_heads=1, head_dim=4, block_tokens=8, dtype="int7")
