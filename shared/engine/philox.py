"""Philox4x32-10 (Salmon et al., SC 2011) over many counters that differ in their last word alone.

The integers are the same on every machine (I4). Knows nothing of tokens or scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
_PIECE = 8192  # counters worked on at once: their words stay in the first two caches


def first_words(last: Words, counter: tuple[int, int, int], key: tuple[int, int]) -> Words:
    """First output word of each counter (*counter, last[i]) under `key`: uint64 [n], values below 2**32."""
    words = np.empty(len(last), dtype=np.uint64)
    for at in range(0, len(last), _PIECE):
        _rounds(last[at : at + _PIECE], counter, key, words[at : at + _PIECE])
    return words


def _rounds(last: Words, counter: tuple[int, int, int], key: tuple[int, int], out: Words) -> None:
    """The first round is scalar but for one word; from there each round works in place on four arrays."""
    high_0, low_0 = divmod(_MULTIPLIER_0 * counter[0], 1 << 32)
    high_1, low_1 = divmod(_MULTIPLIER_1 * counter[2], 1 << 32)
    shape = last.shape
    first = np.full(shape, high_1 ^ counter[1] ^ key[0], dtype=np.uint64)
    second = np.full(shape, low_1, dtype=np.uint64)
    third = last ^ np.uint64(high_0 ^ key[1])
    fourth = np.full(shape, low_0, dtype=np.uint64)
    product = np.empty(shape, dtype=np.uint64)
    half, low = np.uint64(32), np.uint64(_LOW)
    key_0, key_1 = key
    for _ in range(9):
        key_0, key_1 = key_0 + _WEYL_0 & _LOW, key_1 + _WEYL_1 & _LOW
        np.multiply(third, np.uint64(_MULTIPLIER_1), out=third)
        np.multiply(first, np.uint64(_MULTIPLIER_0), out=product)
        np.right_shift(third, half, out=first)
        first ^= second
        first ^= np.uint64(key_0)
        np.bitwise_and(third, low, out=second)
        np.right_shift(product, half, out=third)
        third ^= fourth
        third ^= np.uint64(key_1)
        np.bitwise_and(product, low, out=fourth)
    out[:] = first
