"""Shares of a line: they sum to its cap, and a sender falls back when they stop coming."""

from __future__ import annotations

import pytest

from shared.policy.line_share import SenderReport, ShareHeld, shares

CAP = 25e6


def test_half_to_the_oldest_half_to_the_shortest_a_little_to_all() -> None:
    rates = shares(
        CAP,
        {
            "a": SenderReport(10_000_000, 5_000_000, 9.0),
            "b": SenderReport(2_000_000, 100_000, 0.1),
            "c": SenderReport(9_000_000, 3_000_000, 3.0),
            "idle": SenderReport(0, 0, 0.0),
        },
    )
    assert set(rates) == {"a", "b", "c"}
    assert sum(rates.values()) == pytest.approx(CAP)
    assert rates["a"] == pytest.approx(rates["b"])
    assert rates["c"] == pytest.approx(CAP * 0.1 / 3)


def test_one_sender_gets_all() -> None:
    assert shares(CAP, {"a": SenderReport(1, 1, 0.0)}) == {"a": pytest.approx(CAP)}
    assert shares(CAP, {}) == {}


def test_ties_go_to_the_lower_name() -> None:
    rates = shares(CAP, {name: SenderReport(5, 5, 1.0) for name in ("b", "a")})
    assert rates["a"] > rates["b"]


def test_a_sender_that_hears_nobody_uses_the_cap() -> None:
    assert ShareHeld().rate(0.0, CAP) == CAP


def test_a_grant_counts_until_its_end_then_an_equal_part() -> None:
    held = ShareHeld()
    held.grant(0.0, "r1", 1, 2e6, ttl=1.0, senders=4)
    assert held.rate(0.5, CAP) == 2e6
    assert held.rate(1.5, CAP) == CAP / 4


def test_older_grants_are_let_pass() -> None:
    held = ShareHeld()
    held.grant(0.0, "r1", 5, 2e6, ttl=1.0, senders=4)
    held.grant(0.1, "r1", 4, 9e6, ttl=1.0, senders=4)
    assert held.rate(0.5, CAP) == 2e6


def test_the_lowest_router_name_is_obeyed_until_its_session_ends() -> None:
    held = ShareHeld()
    held.grant(0.0, "r2", 1, 2e6, ttl=9.0, senders=1)
    held.grant(0.0, "r1", 1, 3e6, ttl=9.0, senders=1)
    assert held.rate(0.5, CAP) == 3e6
    held.drop("r1")
    assert held.rate(0.5, CAP) == 2e6
    held.grant(1.0, "r1", 1, 4e6, ttl=9.0, senders=1)  # restarted: its numbers begin anew
    assert held.rate(1.5, CAP) == 4e6


def test_no_share_is_above_the_cap() -> None:
    held = ShareHeld()
    held.grant(0.0, "r1", 1, 9 * CAP, ttl=1.0, senders=1)
    assert held.rate(0.5, CAP) == CAP


def test_nobody_is_dealt_what_it_cannot_use_until_the_next_dealing() -> None:
    reports = {
        "dry": SenderReport(100_000, 100_000, 0.1),
        "next": SenderReport(90_000_000, 2_000_000, 0.2),
        "old": SenderReport(90_000_000, 9_000_000, 9.0),
    }
    rates = shares(CAP, reports, horizon=0.1)
    assert sum(rates.values()) == pytest.approx(CAP)
    assert rates["dry"] == pytest.approx(1e6)  # it is empty after 0.1 s
    assert rates["old"] > rates["next"] > 0.3 * CAP
    assert shares(CAP, {"a": SenderReport(1, 1, 0.0)}, horizon=0.1) == {"a": pytest.approx(CAP)}
