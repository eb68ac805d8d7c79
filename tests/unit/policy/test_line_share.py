"""Shares of a line: they sum to its cap, and a sender falls back when they stop coming."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.line_share import SenderReport, Share, ShareHeld, shares

CAP = 25e6


def rates_of(dealt: dict[str, Share]) -> dict[str, float]:
    return {node: share.rate for node, share in dealt.items()}


def test_half_to_the_oldest_half_to_the_shortest_a_little_to_all() -> None:
    dealt = shares(
        CAP,
        {
            "a": SenderReport(10_000_000, 5_000_000, 9.0),
            "b": SenderReport(2_000_000, 100_000, 0.1),
            "c": SenderReport(9_000_000, 3_000_000, 3.0),
            "idle": SenderReport(0, 0, 0.0),
        },
    )
    rates = rates_of(dealt)
    assert set(rates) == {"a", "b", "c"}
    assert sum(rates.values()) == pytest.approx(CAP)
    assert dealt["a"].oldest == pytest.approx(CAP / 2)
    assert rates["b"] == pytest.approx(CAP * (0.4 + 0.1 / 3))
    assert rates["c"] == pytest.approx(CAP * 0.1 / 3)


def test_who_has_the_oldest_serves_the_oldest_and_the_others_their_shortest() -> None:
    """Else half of what is dealt to the shortest of all would go to whatever is oldest at its sender."""
    reports = {"a": SenderReport(10_000_000, 5_000_000, 9.0), "b": SenderReport(9_000_000, 100_000, 3.0)}
    dealt = shares(CAP, reports)
    assert dealt["a"].oldest == pytest.approx(0.5 * CAP)
    assert dealt["a"].oldest_part == pytest.approx(0.5 / 0.55)
    assert (dealt["b"].oldest, dealt["b"].oldest_part) == (0.0, 0.0)


@pytest.mark.parametrize("senders", [2, 16, 1000])
def test_what_is_dealt_evenly_is_not_taken_from_the_oldest(senders: int) -> None:
    """Else the largest transfers would take longer, the more senders there are."""
    reports = {f"n{at}": SenderReport(10**9, 10**8, float(at)) for at in range(senders)}
    dealt = shares(CAP, reports)
    assert sum(share.oldest for share in dealt.values()) == pytest.approx(CAP / 2)


def test_one_sender_gets_all() -> None:
    assert rates_of(shares(CAP, {"a": SenderReport(1, 1, 0.0)})) == {"a": pytest.approx(CAP)}
    assert shares(CAP, {}) == {}


def test_ties_go_to_the_lower_name() -> None:
    rates = rates_of(shares(CAP, {name: SenderReport(5, 5, 1.0) for name in ("b", "a")}))
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
        "old": SenderReport(95_000_000, 9_000_000, 9.0),
    }
    rates = rates_of(shares(CAP, reports, horizon=0.1))
    assert sum(rates.values()) == pytest.approx(CAP)
    assert rates["dry"] == pytest.approx(1e6)  # it is empty after 0.1 s
    assert rates["old"] > rates["next"] > 0.3 * CAP
    assert rates_of(shares(CAP, {"a": SenderReport(1, 1, 0.0)}, horizon=0.1)) == {"a": pytest.approx(CAP)}


def test_what_the_shortest_cannot_use_goes_to_the_next_and_then_to_those_with_most() -> None:
    """A sender with one small transfer and much else is dealt no more for it than it takes."""
    reports = {
        "small": SenderReport(90_000_000, 100_000, 0.2),
        "next": SenderReport(200_000, 200_000, 0.1),
        "old": SenderReport(99_000_000, 9_000_000, 9.0),
    }
    dealt = shares(CAP, reports, horizon=0.1)
    assert sum(share.rate for share in dealt.values()) == pytest.approx(CAP)
    assert dealt["small"].rate < 0.1 * CAP
    assert dealt["next"].rate == pytest.approx(2e6)
    assert dealt["old"].rate > 0.8 * CAP


@given(
    reports=st.dictionaries(
        st.sampled_from("abcdef"),
        st.builds(
            lambda size, part, age: SenderReport(size, max(1, int(size * part)) if size else 0, age),
            st.integers(0, 10**10),
            st.floats(0.001, 1),
            st.floats(0, 100),
        ),
    ),
    horizon=st.sampled_from([0.0, 0.06, 1.0]),
)
def test_shares_sum_to_the_cap_and_go_to_those_that_wait(
    reports: dict[str, SenderReport], horizon: float
) -> None:
    dealt = shares(CAP, reports, horizon=horizon)
    assert set(dealt) == {node for node, report in reports.items() if report.unsent}
    if dealt:
        assert sum(share.rate for share in dealt.values()) == pytest.approx(CAP)
    for share in dealt.values():
        assert share.oldest >= 0
        assert share.shortest >= 0
        assert 0 <= share.oldest_part <= 1


def test_a_grant_says_how_much_is_for_the_oldest() -> None:
    held = ShareHeld()
    assert held.oldest(0.0) is None
    held.grant(0.0, "r1", 1, 2e6, ttl=1.0, senders=4, oldest=0.25)
    assert held.oldest(0.5) == 0.25
    assert held.oldest(1.5) is None, "stale: as configured"
