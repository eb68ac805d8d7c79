"""The independent drawing rules: published vectors, small cases worked out by hand, and the distribution."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.support.draw import Rules, draw, gumbel, philox, processed

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [  # from Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, words
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def drawn(logits: list[float], tolerance: float = 0.0, ids: tuple[int, ...] = (0,), **rules: Any) -> Any:
    return draw(np.array(logits), list(ids), 1, Rules(**rules), tolerance)


def possible(logits: list[float], **rules: Any) -> set[int]:
    """Every id that 400 positions draw."""
    values = np.array(logits)
    return {draw(values, [0] * n, n, Rules(**rules)).drawn for n in range(1, 401)}


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert tuple(int(word) for word in philox(counter, key)) == words


def test_every_part_of_the_counter_and_key_changes_the_noise() -> None:
    ids = np.arange(4, dtype=np.uint64)
    base = gumbel(ids, 5, 7, 0)
    others = [gumbel(ids, 6, 7, 0), gumbel(ids, 5 + 2**32, 7, 0), gumbel(ids, 5, 8, 0)]
    others += [gumbel(ids, 5, 7 + 2**32, 0), gumbel(ids, 5, 7, 1), gumbel(ids + np.uint64(1), 5, 7, 0)]
    assert all(not np.array_equal(base, other) for other in others)
    assert np.array_equal(base[1:], gumbel(ids[1:], 5, 7, 0))  # each id's noise is its own


def test_draws_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1]))
    rules = Rules(seed=11)
    counts = Counter(draw(logits, [0] * n, n, rules).drawn for n in range(1, 4001))
    shares = np.array([counts[i] / 4000 for i in range(4)])
    assert np.allclose(shares, [0.5, 0.25, 0.15, 0.1], atol=0.025)


def test_temperature_divides_the_scores() -> None:
    logits = np.log(np.array([0.6, 0.4]))
    counts = Counter(draw(logits, [0] * n, n, Rules(seed=2, temperature=0.5)).drawn for n in range(1, 2001))
    assert abs(counts[0] / 2000 - 0.36 / 0.52) < 0.035


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert drawn([1.0, 3.0, 3.0], temperature=0).drawn == 1


@pytest.mark.parametrize(
    ("logits", "rules", "kept"),
    [
        ([1.0, 2.0, 2.0, 2.0], {"top_k": 2}, {1, 2}),  # exactly k, ties by lowest id
        ([1.0, 2.0, 2.0, 2.0], {"top_k": 9}, {0, 1, 2, 3}),
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.6}, {0, 1}),
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.3}, {0}),
        ([0.25, 0.25, 0.25, 0.25], {"top_p": 0.5}, {0, 1}),  # reached exactly; ties by lowest id
        ([0.25, 0.25, 0.25, 0.25], {"top_p": 0.51}, {0, 1, 2}),
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 1e-9}, {0}),
        ([0.4, 0.3, 0.2, 0.1], {"min_p": 0.5}, {0, 1, 2}),
        ([0.4, 0.3, 0.2, 0.1], {"min_p": 0.51}, {0, 1}),
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.58}, {0, 1}),  # 0.4/0.7 < 0.58: of what top-k left
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.57}, {0}),
    ],
)
def test_filters_keep_exactly(logits: list[float], rules: dict[str, Any], kept: set[int]) -> None:
    scores = logits if "top_k" in rules and "top_p" not in rules else np.log(logits).tolist()
    assert possible(scores, seed=4, **rules) == kept


def test_penalties_and_bias() -> None:
    logits = np.array([2.0, -2.0, 1.0, 1.0, 0.0])
    rules = Rules(
        repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 1.5, 4: -100}
    )
    scores = processed(logits, [0, 1, 2, 2], prompt_len=2, rules=rules)
    assert scores.tolist() == [1.0, -4.0, 0.5 - 0.5 - 0.5, 2.5, -100.0]


def test_no_end_before_min_tokens() -> None:
    rules: dict[str, Any] = {"temperature": 0, "min_tokens": 2, "eos_ids": [1], "stop_ids": [2]}
    assert drawn([0.0, 5.0, 4.0], ids=(0,), **rules).drawn == 0
    assert drawn([0.0, 5.0, 4.0], ids=(0, 0), **rules).drawn == 0
    assert drawn([0.0, 5.0, 4.0], ids=(0, 0, 0), **rules).drawn == 1


@pytest.mark.parametrize(
    ("logits", "rules", "near"),
    [
        ([1.0, 1.0005, 0.9, 1.0], {"temperature": 0}, {0, 1, 3}),
        ([1.0, 1.0015, 0.9], {"temperature": 0}, {1}),
        ([1.0, 1.0005, 0.9], {"top_k": 1}, {0, 1}),  # either may be the one kept
        ([1.0, 1.0015, 0.9], {"top_k": 1}, {1}),
        ([0.5, 0.3, 0.2], {"top_p": 0.4999}, {0, 1}),  # seed 0 draws id 1 where it is kept
        ([0.5, 0.3, 0.2], {"top_p": 0.49}, {0}),
    ],
)
def test_near_holds_what_rounding_could_have_drawn(
    logits: list[float], rules: dict[str, Any], near: set[int]
) -> None:
    scores = np.log(logits).tolist() if "top_p" in rules else logits
    seed = next(s for s in range(99) if drawn(scores, seed=s).drawn == 1)
    assert set(drawn(scores, tolerance=1e-3, seed=seed, **rules).near) == near


def test_without_tolerance_only_the_drawn_id_is_near() -> None:
    for seed in range(50):
        verdict = drawn([0.1, 0.5, 0.3, 0.2], seed=seed, top_k=3, top_p=0.9, min_p=0.1)
        assert verdict.near == {verdict.drawn}


def test_the_drawn_id_is_always_near() -> None:
    random = np.random.default_rng(3)
    for seed in range(100):
        scores = random.normal(scale=3, size=40)
        rules = Rules(seed=seed, temperature=random.uniform(0.1, 2), top_k=7, top_p=0.8, min_p=0.05)
        verdict = draw(scores, [0], 1, rules, tolerance=1e-3)
        assert verdict.drawn in verdict.near
        shifted = draw(scores + random.uniform(-4e-4, 4e-4, 40), [0], 1, rules)
        assert shifted.drawn in verdict.near
