"""Draws are those of the plain sampler, with few ids looked at exactly."""

import numpy as np
import pytest

from shared.engine.api import Draw, SamplingParams
from shared.engine.native.contenders import NativeContenders
from shared.engine.sampler import draw_one
from shared.errors import NanLogits
from tests.support.compiled import compiled


def draw(position: int, seed: int, choice: int = 0, temperature: float = 1.0) -> Draw:
    params = SamplingParams(
        max_pos=1 << 50, seed=seed, choice=choice, temperature=temperature, logit_bias={0: 0.0}
    )
    return Draw((), position, 0, params)


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 300, 49_152])
@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 2.0])
def test_the_drawn_id_is_the_same(vocab: int, temperature: float) -> None:
    contenders = NativeContenders(compiled())
    random = np.random.default_rng(vocab)
    for spread in (0.0, 0.1, 3.0, 20.0):
        scores = (random.standard_normal(vocab) * spread).astype(np.float32)
        scores[1:][random.random(vocab - 1) < 0.3] = -np.inf
        wide = scores.astype(np.float64) / temperature
        for at in range(8):
            position, seed = int(random.integers(1 << 40)), int(random.integers(1 << 63)) * 2 + 1
            each = draw(position, seed, at, temperature)
            assert draw_one(scores, each, contenders) == draw_one(scores, each)
            assert len(contenders(wide, each)) <= 3


def test_all_excluded_is_an_error() -> None:
    scores = np.full(100, -np.inf, dtype=np.float32)
    with pytest.raises(NanLogits, match="every id is excluded"):
        draw_one(scores, draw(3, 5), NativeContenders(compiled()))


def test_ids_as_good_as_the_best_are_all_found() -> None:
    """Equal words do not come; equal keys do where the noise makes up the difference of the scores."""
    contenders = NativeContenders(compiled())
    each = draw(77, 1234)
    noise = {}
    for token in range(40):
        alone = np.full(40, -np.inf)
        alone[token] = 0.0
        assert contenders(alone, each).tolist() == [token]
        noise[token] = _gumbel_of(token, each)
    level = np.array([5.0 - noise[token] for token in range(40)])
    assert contenders(level, each).tolist() == list(range(40))
    level[7] -= 0.01
    assert 7 not in contenders(level, each)


def _gumbel_of(token: int, each: Draw) -> float:
    from tests.support.draw import philox

    params = each.params
    counter = (each.position & 0xFFFFFFFF, each.position >> 32, params.choice, token)
    word = philox(counter, (params.seed & 0xFFFFFFFF, params.seed >> 32))[0]
    return float(-np.log(-np.log((word + 0.5) / 2**32)))
