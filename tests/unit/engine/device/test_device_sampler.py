"""Draws on a device are those of the host's sampler, whatever the parameters."""

from __future__ import annotations

import dataclasses

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from shared.engine.api import Draw, Drawn, SamplingParams, ids_of
from shared.engine.device.sampler import draw_on_device
from shared.engine.sampler import draw_batch
from shared.errors import InvalidRequest, NanLogits, NotBuilt

VOCAB = 61

sampling = st.builds(
    SamplingParams,
    max_pos=st.just(999),
    seed=st.integers(0, (1 << 64) - 1),
    choice=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, VOCAB, 500]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 2.5]), max_size=3),
    min_tokens=st.sampled_from([0, 30]),
    stop_ids=st.sampled_from([(), (4, 9, VOCAB)]),
    logprobs=st.sampled_from([-1, -1, -1, 2]),
)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    st.lists(sampling, min_size=1, max_size=6),
    st.integers(0, 10_000),
    st.booleans(),
    st.lists(st.one_of(st.none(), st.binary(min_size=8, max_size=8)), min_size=6, max_size=6),
)
def test_ids_are_the_hosts(
    rows: list[SamplingParams], seed: int, coarse: bool, masks: list[bytes | None]
) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), VOCAB, generator=random) * 3
    if coarse:
        logits = logits.round()  # ties, at the edges too
    history = [int(token) for token in torch.randint(VOCAB, (40,), generator=random)]
    draws = []
    for each, mask in zip(rows, masks, strict=False):
        params = each if mask is None else dataclasses.replace(each, grammar="any")
        draws.append(Draw(ids_of(history, params), 40, 25, params, allowed=mask))
    here, there = draw_on_device(logits.clone(), draws), draw_batch(logits, draws)
    assert [each if isinstance(each, Drawn) else type(each) for each in here] == [
        each if isinstance(each, Drawn) else type(each) for each in there
    ]


def test_a_grammar_that_nobody_prepared_is_refused() -> None:
    (drawn,) = draw_on_device(torch.zeros(1, VOCAB), [Draw((), 5, 5, SamplingParams(999, 0, grammar="x"))])
    assert isinstance(drawn, NotBuilt)


def test_a_row_that_cannot_be_drawn_harms_no_other() -> None:
    logits = torch.zeros(4, VOCAB)
    logits[0, 3] = float("nan")
    logits[1, 7] = float("inf")
    logits[2, 5] = 9.0
    plain = SamplingParams(999, 0, temperature=0.0)
    biased = SamplingParams(999, 0, logit_bias={VOCAB: 1.0})
    drawn = draw_on_device(logits, [Draw((), 5, 5, each) for each in (plain, plain, plain, biased)])
    assert [type(each) for each in drawn] == [NanLogits, NanLogits, Drawn, InvalidRequest]
    assert drawn[2] == Drawn(5)


def test_everything_excluded_is_an_error() -> None:
    every = {token: float("-inf") for token in range(VOCAB)}
    shut = SamplingParams(999, 0, logit_bias=every)
    (drawn,) = draw_on_device(torch.zeros(1, VOCAB), [Draw((), 5, 5, shut)])
    assert isinstance(drawn, NanLogits)
    with pytest.raises(NanLogits, match="position 5"):
        raise drawn
