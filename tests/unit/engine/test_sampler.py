"""The sampler against the rules written a second time (`tests.support.draw`), and its own edges."""

import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from shared.engine.api import Draw, Drawn, SamplingParams, ids_of
from shared.engine.philox import first_words
from shared.engine.sampler import draw_batch, draw_one
from shared.errors import InvalidRequest, NanLogits, NotBuilt
from tests.support.draw import Rules, draw, philox

VOCAB = 700


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**({"max_pos": 1000, "seed": 11} | changes))


def a_draw(ids: list[int], prompt_len: int, chosen: SamplingParams) -> Draw:
    return Draw(ids_of(ids, chosen), len(ids), prompt_len, chosen)


def scores(seed: int, *, vocab: int = VOCAB, spread: float = 3.0, step: float = 0.0) -> torch.Tensor:
    """Random scores; with a `step` they are rounded to it, so that many are equal."""
    values = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread
    return (values / step).round() * step if step else values


# Random123's known answers for philox4x32-10: counter, key, first word.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), 0x6627E8D5),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, 0x408F276D),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), 0xD16CFE09),
]


@pytest.mark.parametrize(("counter", "key", "word"), KNOWN)
def test_philox_known_answers(counter: tuple[int, int, int, int], key: tuple[int, int], word: int) -> None:
    last = np.array([counter[3]], dtype=np.uint64)
    assert first_words(last, counter[:3], key).tolist() == [word]


def test_philox_over_many_counters_equals_one_by_one() -> None:
    last = np.arange(20_000, dtype=np.uint64)
    words = first_words(last, (77, 3, 2), (0xDEADBEEF, 0x12345678))
    assert np.array_equal(words, philox((77, 3, 2, last), (0xDEADBEEF, 0x12345678))[0])
    assert words[12_345] == first_words(last[12_345:12_346], (77, 3, 2), (0xDEADBEEF, 0x12345678))[0]


@st.composite
def sampling(random: st.DrawFn) -> dict[str, Any]:
    """Any mix of settings, each off half of the time."""

    def maybe(strategy: st.SearchStrategy[Any], off: Any) -> Any:
        return random(st.one_of(st.just(off), strategy))

    return {
        "seed": random(st.integers(0, 2**64 - 1)),
        "choice": random(st.integers(0, 3)),
        "temperature": random(st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.0, 2.0, 50.0])),
        "top_k": maybe(st.integers(1, VOCAB + 5), 0),
        "top_p": maybe(st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999]), 1.0),
        "min_p": maybe(st.sampled_from([0.001, 0.05, 0.5, 1.0]), 0.0),
        "repetition_penalty": maybe(st.sampled_from([0.7, 1.3, 5.0]), 1.0),
        "presence_penalty": maybe(st.sampled_from([-1.5, 0.5, 2.0]), 0.0),
        "frequency_penalty": maybe(st.sampled_from([-1.0, 0.3, 2.0]), 0.0),
        "logit_bias": maybe(
            st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 3.0, 100.0]), max_size=3), {}
        ),
        "min_tokens": maybe(st.integers(1, 8), 0),
        "stop_ids": maybe(st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple), ()),
    }


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    sampling(),
    st.integers(0, 50),
    st.sampled_from([0.0, 0.0, 0.5]),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_every_setting_draws_as_the_rules_say(
    settings: dict[str, Any], seed: int, rounded: float, ids: list[int], prompt_len: int
) -> None:
    prompt_len = min(prompt_len, len(ids))
    logits = scores(seed, step=rounded)
    expected = draw(logits.double().numpy(), ids, prompt_len, Rules(**settings)).drawn
    chosen = SamplingParams(max_pos=1000, **settings)
    assert draw_batch(logits[None], [a_draw(ids, prompt_len, chosen)]) == [Drawn(expected)]


def test_a_large_vocabulary_without_cuts() -> None:
    logits = scores(1, vocab=49_152, spread=2.0)
    for seed, temperature in itertools.product(range(5), (0.3, 1.0, 3.0)):
        rules = Rules(seed=seed, temperature=temperature)
        expected = draw(logits.double().numpy(), [1, 2], 1, rules).drawn
        assert (
            draw_one(logits.numpy(), a_draw([1, 2], 1, params(seed=seed, temperature=temperature)))
            == expected
        )


def test_draws_follow_the_probabilities() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    counts = np.zeros(4)
    for position in range(4000):
        counts[draw_one(logits.numpy(), Draw((), position, 0, params()))] += 1
    expected = torch.softmax(logits, 0).numpy()
    assert np.abs(counts / 4000 - expected).max() < 4 * math.sqrt(0.25 / 4000)


def test_a_draw_depends_on_position_choice_and_seed_alone() -> None:
    logits = scores(3, spread=0.5)
    base = Draw((), 5, 2, params())
    same = draw_batch(torch.stack([logits, logits * 2, logits]), [base, base, base])
    assert same[0] == same[2]
    others = [Draw((), 6, 2, params()), Draw((), 5, 2, params(seed=12)), Draw((), 5, 2, params(choice=1))]
    drawn = draw_batch(logits.expand(3, -1), others)
    assert all(other != same[0] for other in drawn)
    high = Draw((), 5 + (1 << 32), 2, params())
    assert draw_batch(logits[None], [high]) != [same[0]]


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, [400, 17, 650]] = 2.5
    assert draw_batch(logits, [a_draw([1], 1, params(temperature=0.0))] * 2) == [Drawn(17), Drawn(0)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_finite_fail_their_own_row(bad: float, temperature: float) -> None:
    logits = torch.stack([scores(1), scores(2), scores(3)])
    logits[1, 123] = bad
    one = a_draw([4], 1, params(temperature=temperature))
    first, second, third = draw_batch(logits, [one] * 3)
    assert isinstance(second, NanLogits)
    assert [first, third] == draw_batch(logits[[0, 2]], [one] * 2)


def test_a_row_of_minus_infinity_fails() -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    assert isinstance(draw_batch(logits, [a_draw([1], 1, params())])[0], NanLogits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_may_not_exclude_every_id(temperature: float) -> None:
    chosen = params(temperature=temperature, min_tokens=2, stop_ids=(0, 1, 2))
    assert isinstance(draw_batch(torch.zeros(1, 3), [a_draw([1], 1, chosen)])[0], NanLogits)


def test_settings_that_cannot_be_served_fail_their_own_row() -> None:
    draws = [
        a_draw([1], 1, params(logit_bias={VOCAB: 1.0})),
        a_draw([1], 1, params(grammar="root ::= 'a'")),
        a_draw([1], 1, params()),
    ]
    bias, grammar, fine = draw_batch(scores(1).expand(3, -1), draws)
    assert isinstance(bias, InvalidRequest)
    assert bias.param == "logit_bias"
    assert isinstance(grammar, NotBuilt)
    assert isinstance(fine, Drawn)


def test_logprobs_come_from_the_raw_scores() -> None:
    logits = scores(9, step=1.0)
    chosen = params(temperature=0.5, logit_bias={3: 100.0}, logprobs=5)
    (drawn,) = draw_batch(logits[None], [a_draw([1], 1, chosen)])
    assert isinstance(drawn, Drawn)
    raw = torch.log_softmax(logits.double(), 0)
    assert drawn.id == 3
    assert drawn.logprob == pytest.approx(float(raw[3]), abs=1e-12)
    order = sorted(range(VOCAB), key=lambda token: (-float(raw[token]), token))[:5]
    assert [token for token, _ in drawn.top] == order
    assert [value for _, value in drawn.top] == pytest.approx([float(raw[token]) for token in order])


def test_logprobs_zero_is_the_drawn_id_alone() -> None:
    logits = scores(2)
    (drawn,) = draw_batch(logits[None], [a_draw([1], 1, params(temperature=0.0, logprobs=0))])
    assert isinstance(drawn, Drawn)
    assert (drawn.id, drawn.top) == (int(logits.argmax()), ())
    assert drawn.logprob == pytest.approx(float(torch.log_softmax(logits, 0).max()))


def bits(allowed: list[int], vocab: int = VOCAB) -> bytes:
    return np.packbits(np.isin(np.arange(vocab), allowed), bitorder="little").tobytes()


def masked(chosen: SamplingParams, allowed: list[int], ids: list[int], prompt_len: int) -> Draw:
    return Draw(ids_of(ids, chosen), len(ids), prompt_len, chosen, tuple(ids[prompt_len:]), bits(allowed))


@hypothesis.settings(max_examples=100)
@hypothesis.given(sampling(), st.integers(0, 50), st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=40))
def test_what_a_grammar_leaves(settings: dict[str, Any], seed: int, allowed: set[int]) -> None:
    """The rules over the ids that are left, bias or not; nothing else can be drawn."""
    chosen = SamplingParams(max_pos=1000, grammar="any", **settings)
    logits = scores(seed)
    ids = [3, 9, 3, 50, 8]
    found = draw_one(logits.numpy(), masked(chosen, sorted(allowed), ids, 2))
    mask = np.isin(np.arange(VOCAB), sorted(allowed))
    assert found in allowed
    rules = Rules(**settings, allowed=lambda _output: mask)
    assert found == draw(logits.double().numpy(), ids, 2, rules).drawn


def test_the_end_comes_before_min_tokens_where_nothing_else_is_left() -> None:
    chosen = params(grammar="any", temperature=0.0, min_tokens=50, stop_ids=(7,))
    logits = scores(1).numpy()
    assert draw_one(logits, masked(chosen, [7], [1, 2], 1)) == 7
    assert draw_one(logits, masked(chosen, [7, 600], [1, 2], 1)) == 600
