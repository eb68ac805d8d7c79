"""Token bucket, line estimate, back-off and chunk sizes."""

from __future__ import annotations

import pytest

from shared.policy.flow import UNLIMITED, Backoff, LineEstimate, TokenBucket, chunk_size

MB = 1e6


def test_a_bucket_lets_its_rate_through_whatever_the_chunks() -> None:
    for chunk in (1000, 30_000, 700_000):
        bucket = TokenBucket(10 * MB)
        now, sent = 0.0, 0
        while now < 5.0:
            delay = bucket.delay(now)
            now += delay
            if not delay:
                bucket.spend(now, chunk)
                sent += chunk
        assert sent == pytest.approx(50 * MB, rel=0.02)


def test_an_idle_bucket_saves_no_more_than_its_depth() -> None:
    bucket = TokenBucket(10 * MB, depth=0.005)
    bucket.delay(0.0)
    sent = 0
    while not bucket.delay(100.0):
        bucket.spend(100.0, 1000)
        sent += 1000
    assert sent <= 10 * MB * 0.005 + 1000


def test_without_a_limit_nothing_waits_and_a_limit_later_forgives_it() -> None:
    bucket = TokenBucket()
    bucket.spend(0.0, 10**9)
    assert bucket.delay(0.0) == 0
    bucket.set_rate(1.0, MB)
    assert bucket.delay(1.0) == 0
    bucket.spend(1.0, 10**6)
    assert bucket.delay(1.0) == pytest.approx(1.0)
    bucket.set_rate(1.0, 2 * MB)
    assert bucket.delay(1.0) == pytest.approx(0.5)


def test_the_estimate_is_the_best_recent_sample() -> None:
    estimate = LineEstimate(10.0)
    for step, rate in enumerate([5.0, 20.0, 24.0, 25.0, 25.0, 25.0, 22.0]):
        estimate.sample(step * 0.1, rate * MB, rtt=0.04, lost=False)
    assert estimate.started
    assert estimate.rate == 25 * MB


def test_an_idle_line_keeps_its_estimate() -> None:
    estimate = _steady(25 * MB)
    estimate.sample(500.0, 25 * MB, rtt=0.04, lost=False)
    assert estimate.rate == 25 * MB


def test_a_slow_sender_alone_is_no_slow_line_until_the_window_is_over() -> None:
    estimate = _steady(25 * MB)
    for step in range(20):
        estimate.sample(2.0 + step * 0.1, 5 * MB, rtt=0.04, lost=False)
    assert estimate.rate == 25 * MB
    estimate.sample(20.0, 5 * MB, rtt=0.04, lost=False)
    assert estimate.rate == 5 * MB


@pytest.mark.parametrize(("rtt", "lost"), [(0.1, False), (0.04, True)])
def test_a_fall_with_a_queue_or_loss_is_believed_at_once(rtt: float, lost: bool) -> None:
    estimate = _steady(25 * MB)
    for step in range(2):
        estimate.sample(2.0 + step * 0.1, 6 * MB, rtt=rtt, lost=lost)
    assert estimate.rate == 6 * MB


def test_probes_find_a_faster_line_within_three_seconds() -> None:
    estimate, capacity, now, rtt = _steady(6 * MB), 25 * MB, 2.0, 0.04
    while estimate.rate < 0.95 * capacity:
        rate = min(capacity, estimate.pace(now, rtt))
        estimate.sample(now, rate, rtt=rtt, lost=False)
        now += rtt
    assert now < 5.0


def test_pacing_at_the_estimate_does_not_ratchet_down() -> None:
    """A sender that delivers a little less than it may, for a long time."""
    estimate, now, rtt = _steady(25 * MB), 2.0, 0.04
    for _ in range(3000):
        rate = min(25 * MB, 0.98 * estimate.pace(now, rtt))
        estimate.sample(now, rate, rtt=rtt, lost=False)
        now += rtt
    assert estimate.rate >= 0.97 * 25 * MB


def test_a_pace_that_pauses_does_not_pull_the_estimate_down() -> None:
    """A sender whose turns come late, so that round trips look risen, for longer than the window."""
    estimate, now = _steady(25 * MB), 2.0
    for step in range(300):
        rate = (0.3, 0.9, 0.1)[step % 3] * estimate.pace(now, 0.01)
        estimate.sample(now, rate, rtt=0.05, lost=step % 7 == 0, limited=False)
        now += 0.1
    assert estimate.rate >= 25 * MB


def test_more_than_the_estimate_counts_whatever_limited_it() -> None:
    estimate = _steady(25 * MB)
    estimate.sample(2.0, 30 * MB, rtt=0.04, lost=False, limited=False)
    assert estimate.rate == 30 * MB


def test_a_line_that_was_never_full_is_not_paced_by_what_it_happened_to_carry() -> None:
    estimate = LineEstimate(10.0, 25 * MB)
    for step in range(20):
        estimate.sample(0.1 * step, MB, rtt=0.04, lost=False, limited=False)
    assert estimate.rate == 25 * MB
    assert not estimate.started


def test_nothing_is_held_back_while_samples_still_grow() -> None:
    estimate = LineEstimate(10.0)
    estimate.sample(0.1, MB, rtt=0.04, lost=False)
    assert estimate.pace(0.1, 0.04) == UNLIMITED


def test_the_guess_counts_until_something_was_measured() -> None:
    estimate = LineEstimate(10.0, 25 * MB)
    assert estimate.rate == 25 * MB
    estimate.sample(0.1, MB, rtt=0.04, lost=False)
    assert estimate.rate == 25 * MB
    for step in range(5):
        estimate.sample(0.2 + step, 20 * MB, rtt=0.04, lost=False)
    assert estimate.rate == 20 * MB


def test_backoff_doubles_to_its_limit_and_begins_again() -> None:
    backoff = Backoff(0.05, 2.0)
    pauses = [backoff.next(1.0) for _ in range(8)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    assert backoff.next(0.0) == 1.0
    backoff.reset()
    assert backoff.next(1.0) == 0.05


@pytest.mark.parametrize(
    ("rate", "size"),
    [(0, 262144), (UNLIMITED, 262144), (1e5, 16384), (2.5e6, 24576), (25e6, 249856), (1e9, 262144)],
)
def test_chunks_take_about_ten_milliseconds(rate: float, size: int) -> None:
    assert chunk_size(rate, 10.0, 16 << 10, 256 << 10) == size


def _steady(rate: float) -> LineEstimate:
    estimate = LineEstimate(10.0)
    for step in range(8):
        estimate.sample(step * 0.1, rate, rtt=0.04, lost=False)
    return estimate


def test_a_line_that_has_become_much_faster_is_found_in_growing_steps() -> None:
    """A sample that finds more is followed by a bolder one, and much more by a new start-up."""
    estimate = LineEstimate(10.0)
    now, rtt = 100.0, 0.04
    for _ in range(5):
        now += 0.1
        estimate.sample(now, 6e6, rtt=rtt, lost=False)
    paces = []
    for _ in range(20):
        now += 0.1
        pace = min(25e6, estimate.pace(now, rtt))
        paces.append(pace / estimate.rate)
        estimate.sample(now, pace, rtt=rtt, lost=False, limited=pace >= 25e6)
        if estimate.rate >= 0.85 * 25e6:
            break
    assert estimate.rate >= 0.85 * 25e6
    probes = [pace for pace in paces if pace > 1.01]
    assert probes[0] <= 1.25 + 1e-9
    assert len(probes) <= 5
