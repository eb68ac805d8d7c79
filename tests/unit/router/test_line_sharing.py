"""Which sender gets how much of a line, from what their reports say."""

from __future__ import annotations

import pytest

from services.router.mesh import Mesh
from services.router.sharing import HORIZON, Sharing
from shared.policy.config import LinkPolicy
from shared.wire.messages import LineShare
from shared.wire.port import Send
from tests.support.placing import Numbers


def dealt(numbers: Numbers, oldest_share: float = 0.5) -> dict[str, float]:
    mesh = Mesh(
        numbers.policy, numbers.worker_policy, LinkPolicy(), numbers.fleet, numbers.index, numbers.placement
    )
    assert Sharing(mesh, oldest_share).deal(numbers.now)
    sent = [each for each in mesh.outbox if isinstance(each, Send)]
    return {each.node: each.message.rate for each in sent if isinstance(each.message, LineShare)}


def waits(numbers: Numbers, name: str, unsent: int, smallest: int, age_ms: int, gain: float = 1.0) -> None:
    numbers.report(
        name,
        unsent_bytes={"wan": unsent},
        smallest_remaining={"wan": smallest},
        oldest_age_ms={"wan": age_ms},
        line_gain={"wan": gain} if gain > 1 else {},
    )


def test_half_of_a_line_goes_to_the_shortest_transfer_and_half_to_the_oldest() -> None:
    numbers = Numbers("p1", "p2", "p3", "m1", rate=100e6)
    waits(numbers, "p1", 900_000_000, 900_000_000, 9000)
    waits(numbers, "p2", 60_000_000, 20_000_000, 10)
    waits(numbers, "p3", 60_000_000, 60_000_000, 20)
    rates = dealt(numbers)
    assert sum(rates.values()) == pytest.approx(100e6)
    assert rates["p1"] == pytest.approx(100e6 * (0.5 + 0.1 / 3))
    assert rates["p2"] == pytest.approx(100e6 * (0.4 + 0.1 / 3))
    assert rates["p3"] == pytest.approx(100e6 * 0.1 / 3)


def test_a_sender_with_nothing_to_send_now_is_not_the_one_with_the_shortest() -> None:
    numbers = Numbers("p1", "p2", "p3", "m1", rate=100e6)
    waits(numbers, "p1", 900_000_000, 900_000_000, 9000)
    waits(numbers, "p2", 10_000_000, 0, 0)  # sent, and not acknowledged yet
    waits(numbers, "p3", 60_000_000, 60_000_000, 20)
    rates = dealt(numbers)
    assert rates["p3"] > 10 * rates["p2"]


def test_the_part_for_the_oldest_is_the_configured_one() -> None:
    numbers = Numbers("p1", "p2", "m1", rate=100e6)
    waits(numbers, "p1", 900_000_000, 900_000_000, 9000)
    waits(numbers, "p2", 60_000_000, 20_000_000, 10)
    rates = dealt(numbers, 0.2)
    assert rates["p1"] == pytest.approx(100e6 * (0.2 + 0.1 / 2))
    assert rates["p2"] == pytest.approx(100e6 * (0.7 + 0.1 / 2))


def test_compressed_bytes_are_dealt_as_many_as_the_line_carries_of_them() -> None:
    """Whose KV gets half as large can use half as much until the next dealing."""
    used = []
    for gain in (1.0, 2.0):
        numbers = Numbers("p1", "p2", "p3", "m1", rate=100e6)
        waits(numbers, "p1", 900_000_000, 900_000_000, 9000)
        waits(numbers, "p2", 900_000, 900_000, 10, gain)
        waits(numbers, "p3", 60_000_000, 60_000_000, 20)
        rates = dealt(numbers)
        assert sum(rates.values()) == pytest.approx(100e6)
        used.append(rates["p2"])
    assert used[0] == pytest.approx(900_000 / HORIZON)
    assert used[1] == pytest.approx(450_000 / HORIZON)


def test_of_two_the_one_whose_transfer_is_shorter_on_the_line_comes_first() -> None:
    numbers = Numbers("p1", "p2", "m1", rate=100e6)
    waits(numbers, "p1", 60_000_000, 30_000_000, 20, 2.0)
    waits(numbers, "p2", 60_000_000, 20_000_000, 20)
    rates = dealt(numbers, 0.0)
    assert rates["p1"] > 10 * rates["p2"]
