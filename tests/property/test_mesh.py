"""The whole mesh under arbitrary orders of everything: I1 to I3, I5 and I6 after each event, nothing left.

A failure names its seed: `Weather(seed, ...).play()` replays it, event by event. `MESH_EXAMPLES=500` looks
at more, and always other ones.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.weather import HARMS, Weather

EXAMPLES = int(os.environ.get("MESH_EXAMPLES", "0"))
pytestmark = pytest.mark.timeout(60 + EXAMPLES)
SEEDS = st.integers(0, 1 << 32)


def looks(few: int) -> settings:
    """The same few examples every time, or as many new ones as were asked for."""
    return settings(max_examples=EXAMPLES or few, derandomize=not EXAMPLES, deadline=None)


def play(seed: int, requests: int, blocks: tuple[int, ...], harms: tuple[str, ...] = ()) -> None:
    try:
        Weather(seed, requests=requests, blocks=blocks, harms=harms).play()
    except BaseException as error:
        error.add_note(f"again: Weather({seed}, requests={requests}, blocks={blocks}, harms={harms}).play()")
        raise


@given(seed=SEEDS, requests=st.integers(1, 8))
@looks(20)
def test_in_calm_weather_every_request_is_answered(seed: int, requests: int) -> None:
    play(seed, requests, (200,))


@given(seed=SEEDS, requests=st.integers(2, 10))
@looks(15)
def test_where_blocks_are_scarce_requests_wait_or_are_shed(seed: int, requests: int) -> None:
    play(seed, requests, (30, 45, 60))


@given(seed=SEEDS, requests=st.integers(1, 8))
@looks(30)
def test_whatever_breaks_no_token_is_wrong_and_nothing_is_left(seed: int, requests: int) -> None:
    play(seed, requests, (60, 100, 200), HARMS)


@pytest.mark.parametrize("harm", HARMS)
def test_each_harm_alone(harm: str) -> None:
    for seed in range(2):
        play(seed, 6, (200,), (harm,))


@pytest.mark.parametrize("seed", [6491, 10451, 10545, 40037])
def test_lives_that_once_went_wrong(seed: int) -> None:
    play(seed, 6, (60, 100, 200), HARMS)


def test_lives_that_nobody_has_seen_yet() -> None:
    fresh = random.SystemRandom()
    for _ in range(6):
        play(fresh.getrandbits(32), 6, (60, 100, 200), HARMS)
