"""The random lives of the mesh see what they are for: with one check switched off, some life fails."""

from __future__ import annotations

import pytest

from shared.errors import MeshError
from tests.support.switched_off import CHECKS
from tests.support.weather import Weather

SEEDS = range(12)
HARMS = {"accept_damage": ("damage",)}


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_is_switched_off_is_missed(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CHECKS[check](monkeypatch.setattr)
    harms = HARMS.get(check, ())
    assert any(_fails(seed, harms) for seed in SEEDS), f"{len(SEEDS)} lives went well without it"


def _fails(seed: int, harms: tuple[str, ...]) -> bool:
    try:
        Weather(seed, requests=5, harms=harms).play()
    except (AssertionError, LookupError, RuntimeError, MeshError):
        return True
    return False
