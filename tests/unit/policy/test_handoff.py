"""One-shot or catch-up, and when a catch-up is over."""

import pytest

from shared.policy.config import RouterPolicy
from shared.policy.handoff import CutMode, OwnerLoad, caught_up, cut_mode

POLICY = RouterPolicy(catch_up_backlog=64, catch_up_rounds=2)
IDLE = OwnerLoad(running=1, queued=0, max_running=64, free_blocks=900, pool_blocks=1000)


@pytest.mark.parametrize(
    ("backlog", "relay", "main_rate", "mode"),
    [
        (64, IDLE, 5000.0, CutMode.ONE_SHOT),
        (65, IDLE, 5000.0, CutMode.CATCH_UP),
        (500, OwnerLoad(48, 0, 64, 900, 1000), 5000.0, CutMode.ONE_SHOT),
        (500, OwnerLoad(1, 1, 64, 900, 1000), 5000.0, CutMode.ONE_SHOT),
        (500, OwnerLoad(1, 0, 64, 125, 1000), 5000.0, CutMode.ONE_SHOT),
        (500, IDLE, 80.0, CutMode.ONE_SHOT),
        (500, IDLE, 81.0, CutMode.CATCH_UP),
    ],
)
def test_the_mode(backlog: int, relay: OwnerLoad, main_rate: float, mode: CutMode) -> None:
    choice = cut_mode(POLICY, backlog, relay, main_rate, relay_rate=40.0)
    assert choice.mode is mode
    assert choice.reason


def test_catch_up_can_be_switched_off() -> None:
    off = RouterPolicy(catch_up_rounds=0)
    assert cut_mode(off, 500, IDLE, 5000.0, 40.0).mode is CutMode.ONE_SHOT


def test_a_catch_up_is_over_when_little_is_left_or_after_its_rounds() -> None:
    assert not caught_up(POLICY, 65, 1)
    assert caught_up(POLICY, 64, 1)
    assert caught_up(POLICY, 300, 2)
