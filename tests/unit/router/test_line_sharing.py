"""Which sender gets how much of a line, from what their reports say."""

from __future__ import annotations

import pytest

from services.router.mesh import Mesh
from services.router.sharing import Sharing
from shared.policy.config import LinkPolicy
from shared.wire.messages import LineShare
from shared.wire.port import Send
from tests.support.placing import Numbers


def dealt(numbers: Numbers) -> dict[str, float]:
    mesh = Mesh(
        numbers.policy, numbers.worker_policy, LinkPolicy(), numbers.fleet, numbers.index, numbers.placement
    )
    assert Sharing(mesh).deal(numbers.now)
    sent = [each for each in mesh.outbox if isinstance(each, Send)]
    return {each.node: each.message.rate for each in sent if isinstance(each.message, LineShare)}


def waits(numbers: Numbers, name: str, unsent: int, smallest: int, age_ms: int) -> None:
    numbers.report(
        name,
        unsent_bytes={"wan": unsent},
        smallest_remaining={"wan": smallest},
        oldest_age_ms={"wan": age_ms},
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
