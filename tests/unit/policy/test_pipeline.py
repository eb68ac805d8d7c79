"""Which pipeline, from seconds alone."""

import pytest

from shared.policy.config import RouterPolicy
from shared.policy.pipeline import (
    Pipeline,
    Roads,
    choose_pipeline,
    line_seconds,
    local_limit,
    prefill_seconds,
)

POLICY = RouterPolicy(md_local_tokens=256, relay_margin=0.05, max_line_wait=30.0, singular_min_uncached=1024)


def roads(lacking: int = 5000, **more: object) -> Roads:
    settings: dict[str, object] = {"prefill_possible": True, "line_up": True, "t_main": 2.0, "line_wait": 2.0}
    return Roads(lacking_tokens=lacking, **(settings | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "pipeline"),
    [
        (roads(256), Pipeline.MD),
        (roads(257), Pipeline.P_MD),
        (roads(10, local_allowed=False), Pipeline.P_MD),
        (roads(10, local_allowed=False, prefill_possible=False), Pipeline.MD),
        (roads(4096, line_up=False), Pipeline.MD),
        (roads(4097, line_up=False), None),
        (roads(4096, prefill_possible=False), Pipeline.MD),
        (roads(4097, prefill_possible=False), None),
        (roads(t_relay=1.0), Pipeline.P_RLD_MD),
        (roads(t_relay=1.96), Pipeline.P_MD),
        (roads(t_relay=1.0, relay_allowed=False), Pipeline.P_MD),
        (roads(t_relay=1.0, relay_output=0.5, singular_allowed=True), Pipeline.P_RLD),
        (roads(t_relay=1.0, relay_output=1.5, singular_allowed=True), Pipeline.P_RLD_MD),
        (roads(1000, t_relay=1.0, relay_output=0.5, singular_allowed=True), Pipeline.P_RLD_MD),
        (roads(t_relay=1.0, relay_output=0.5), Pipeline.P_RLD_MD),
        (roads(t_main=40.0, line_wait=40.0), None),
        (roads(t_main=40.0, line_wait=40.0, t_relay=1.0), None),
        (roads(t_main=40.0, line_wait=40.0, t_relay=1.0, singular_allowed=True), Pipeline.P_RLD),
    ],
)
def test_the_pipeline(given: Roads, pipeline: Pipeline | None) -> None:
    choice = choose_pipeline(POLICY, given, 600.0)
    assert choice.pipeline is pipeline
    assert choice.reason


def test_the_line_has_to_be_done_within_the_deadline() -> None:
    choice = choose_pipeline(POLICY, roads(line_wait=2.0), 1.5)
    assert choice.pipeline is None
    assert choice.wait == pytest.approx(0.5)


def test_switches() -> None:
    late = roads(t_relay=1.0, relay_output=0.1, singular_allowed=True)
    assert choose_pipeline(RouterPolicy(relay=False), late, 600.0).pipeline is Pipeline.P_MD
    assert choose_pipeline(RouterPolicy(singular=False), late, 600.0).pipeline is Pipeline.P_RLD_MD


def test_seconds() -> None:
    assert prefill_seconds(1000, 500, 1000.0) == pytest.approx(1.5)
    assert prefill_seconds(0, 0, 1000.0) > 0
    assert line_seconds(1e6, 1e6, 1e6, 0.04) == pytest.approx(2.04)
    assert line_seconds(1e6, 0, 1e6, 0.04) == 0.0
    assert line_seconds(1e6, 1e6, 0.0, 0.04) == pytest.approx(0.04)
    assert local_limit(POLICY, line_up=True, prefill_possible=True) == 256
    assert local_limit(POLICY, line_up=False, prefill_possible=True) == 4096
