"""Philox4x32-10 and the Gumbel noise drawn from it, in plain torch: the integers that every device must
reproduce.

Key: the request's seed (64 bits). Counter: absolute position (64 bits), choice, token id. One word is used.
"""

from __future__ import annotations

import torch

MULTIPLIER_A = 0xD2511F53
MULTIPLIER_B = 0xCD9E8D57
WEYL_A = 0x9E3779B9
WEYL_B = 0xBB67AE85
MASK = 0xFFFFFFFF
ROUNDS = 10


def _multiply(constant: int, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of constant * value. int64 wraps, so all 64 bits of the product are there."""
    product = value * constant
    return (product >> 32).bitwise_and_(MASK), product.bitwise_and_(MASK)


def philox4x32(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    key: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four output words of Philox4x32-10 (Salmon et al., 2011), int64 tensors that hold 32-bit values;
    broadcasts.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high_a, low_a = _multiply(MULTIPLIER_A, c0)
        high_b, low_b = _multiply(MULTIPLIER_B, c2)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0 = (k0 + WEYL_A) & MASK
        k1 = (k1 + WEYL_B) & MASK
    return c0, c1, c2, c3


def philox_words(
    seeds: torch.Tensor, positions: torch.Tensor, choices: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """Word x0 per (row, token): seeds, positions, choices [B] integers, token_ids [V] or [B, V] -> [B, V]
    int64.

    A seed of 64 bits is given as the int64 with the same bits.
    """
    seeds, positions, choices = (t.to(torch.int64)[:, None] for t in (seeds, positions, choices))
    token_ids = token_ids.to(torch.int64)
    if token_ids.dim() == 1:
        token_ids = token_ids[None, :]
    counter = (positions & MASK, (positions >> 32) & MASK, choices & MASK, token_ids & MASK)
    return philox4x32(counter, (seeds & MASK, (seeds >> 32) & MASK))[0]


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """-log(-log(u)) with u = (word + 0.5) / 2^32, float64; finite for every word."""
    uniform = (words.to(torch.float64) + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))


def gumbel_noise(
    seeds: torch.Tensor, positions: torch.Tensor, choices: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """The noise of each (row, token), float64 [B, V]; arguments as in `philox_words`."""
    return gumbel(philox_words(seeds, positions, choices, token_ids))
