"""Philox against the published vectors, and the noise at its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from shared.engine.philox import first_words
from shared.kernels.philox import gumbel, gumbel_noise, philox4x32, philox_words

KNOWN = [
    # Random123's kat_vectors: counter, key, output
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    assert tuple(int(word) for word in philox4x32((c0, c1, c2, c3), (k0, k1))) == expected


def test_key_and_counter_fields_stand_where_they_should() -> None:
    counter, key, expected = KNOWN[2]
    seed = key[0] | key[1] << 32
    position = counter[0] | counter[1] << 32
    words = philox_words(
        torch.tensor([seed]),
        torch.tensor([position - 2**64 if position >= 2**63 else position]),
        torch.tensor([counter[2]]),
        torch.tensor([counter[3]]),
    )
    assert words.tolist() == [[expected[0]]]


def test_a_seed_above_63_bits_is_its_int64_twin() -> None:
    ones = torch.tensor([-1])
    words = philox_words(ones, ones, torch.tensor([0xFFFFFFFF]), torch.tensor([0xFFFFFFFF]))
    assert words.tolist() == [[KNOWN[1][2][0]]]


def test_noise_is_finite_and_in_order_at_the_edges() -> None:
    noise = gumbel(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert bool(noise.isfinite().all())
    assert noise.tolist() == sorted(noise.tolist())
    assert noise[0] == pytest.approx(-math.log(33 * math.log(2)))
    assert noise[-1] == pytest.approx(33 * math.log(2), rel=1e-9)


def test_noise_has_the_moments_of_a_gumbel() -> None:
    noise = gumbel_noise(
        torch.arange(50), torch.arange(50), torch.zeros(50, dtype=torch.int64), torch.arange(2000)
    )
    assert float(noise.mean()) == pytest.approx(0.57722, abs=0.02)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.05)
    # neither rows nor tokens repeat each other
    assert len(set(noise.flatten().tolist())) > 0.999 * noise.numel()


def test_rows_do_not_depend_on_their_neighbours() -> None:
    seeds, positions, choices = torch.arange(4) * 77, torch.arange(4) + 5, torch.tensor([0, 1, 0, 3])
    together = philox_words(seeds, positions, choices, torch.arange(100))
    for row in range(4):
        at = slice(row, row + 1)
        subset = philox_words(seeds[at], positions[at], choices[at], torch.tensor([[99, 3]]))
        assert subset[0].tolist() == [int(together[row, 99]), int(together[row, 3])]


def test_the_engines_own_generator_draws_the_same_integers() -> None:
    """A sequence may be drawn for by the engine's sampler here and by the kernel there."""
    ids = torch.arange(1000)
    for seed, position, choice in ((0, 0, 0), (2**63 + 12345, 2**33 + 7, 3), (0xDEADBEEF, 8191, 2**31 - 1)):
        theirs = first_words(
            ids.numpy().astype(np.uint64),
            (position & 0xFFFFFFFF, position >> 32, choice),
            (seed & 0xFFFFFFFF, seed >> 32),
        )
        signed = seed - 2**64 if seed >= 2**63 else seed
        ours = philox_words(torch.tensor([signed]), torch.tensor([position]), torch.tensor([choice]), ids)
        assert ours[0].tolist() == theirs.tolist()
