"""When chunks are compressed: while both sides' codecs are faster than the line, and it gains something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.compression import CompressionGauge, WireGain

MB = 1e6


def measured(gauge: CompressionGauge, speed: float, gain: float = 1.5, times: int = 8) -> None:
    for _ in range(times):
        gauge.encoded(300_000, int(300_000 / gain), 300_000 / speed)


def test_off_and_on_measure_nothing() -> None:
    off, on = CompressionGauge("off"), CompressionGauge("on")
    measured(off, 900 * MB)
    measured(on, 1 * MB, gain=1.0)
    assert not off.wants(0, 1 * MB)
    assert on.wants(0, 900 * MB)


def test_nothing_is_done_on_a_line_of_which_nothing_is_known() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 900 * MB)
    assert not gauge.wants(100.0, 0.0)


def test_a_few_chunks_tell_how_fast_the_codec_is() -> None:
    gauge = CompressionGauge("auto")
    assert [gauge.wants(100.0, 10 * MB) for _ in range(6)] == [True] * 4 + [False] * 2
    measured(gauge, 500 * MB, times=4)
    assert gauge.wants(100.1, 10 * MB)


def test_where_it_does_not_pay_it_is_tried_again_later() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 100 * MB)
    assert sum(gauge.wants(100.0, 100 * MB) for _ in range(10)) == 4
    assert not gauge.wants(104.0, 100 * MB)
    assert sum(gauge.wants(106.0, 100 * MB) for _ in range(10)) == 4
    measured(gauge, 400 * MB)
    assert gauge.wants(106.1, 100 * MB)


def test_it_begins_later_than_it_ends() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 100 * MB)
    for _ in range(4):
        gauge.wants(100.0, 75 * MB)  # 1.33 x as fast: not enough to begin
    assert not gauge.wants(100.1, 75 * MB)
    assert gauge.wants(100.2, 50 * MB)
    assert gauge.wants(100.3, 75 * MB)
    assert not gauge.wants(100.4, 90 * MB)
    assert not gauge.wants(100.5, 75 * MB)


def test_the_slower_side_counts() -> None:
    gauge = CompressionGauge("auto", parallel=2)
    measured(gauge, 100 * MB)
    assert gauge.speed() == pytest.approx(200 * MB, rel=0.01)
    gauge.other_side(60 * MB)
    assert gauge.speed() == 60 * MB
    assert gauge.wants(100.0, 30 * MB)


def test_numbers_that_hardly_shrink_are_left_alone() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 900 * MB, gain=1.01)
    assert sum(gauge.wants(100.0, 10 * MB) for _ in range(20)) == 4


def busy(gauge: CompressionGauge, now: float, until: float, rate: float, on: float, off: float) -> float:
    """Send all the time, with what arrives by whether it is compressed; the part that was."""
    packed = total = 0
    while now < until:
        wants = gauge.wants(now, rate)
        now += 1_000_000 / (on if wants else off)
        gauge.sent(now, 1_000_000, rate)
        packed, total = packed + wants, total + 1
    return packed / total


def test_where_less_arrives_with_it_it_ends_and_is_seldom_tried_again() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 300 * MB)
    assert busy(gauge, 100.0, 102.0, 100 * MB, on=60 * MB, off=100 * MB) > 0.1  # the first try
    assert busy(gauge, 102.0, 600.0, 100 * MB, on=60 * MB, off=100 * MB) < 0.01


def test_where_more_arrives_with_it_it_goes_on() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 300 * MB)
    assert busy(gauge, 100.0, 160.0, 100 * MB, on=140 * MB, off=100 * MB) > 0.95


def test_a_stall_is_no_loss() -> None:
    """Once in a while nothing leaves for 0.3 s, and little arrives in that stretch whatever is sent."""
    gauge = CompressionGauge("auto")
    measured(gauge, 300 * MB)
    now, parts = 100.0, []
    for _ in range(30):
        parts.append(busy(gauge, now, now + 2.0, 100 * MB, on=140 * MB, off=100 * MB))
        now += 2.3
    assert sum(parts) / len(parts) > 0.9


def paid_and_slow() -> CompressionGauge:
    """Compression of 100 MB/s has paid until 105.0, and then the codec's chunks take too long."""
    gauge = CompressionGauge("auto")
    measured(gauge, 300 * MB)
    busy(gauge, 100.0, 105.0, 100 * MB, on=140 * MB, off=100 * MB)
    measured(gauge, 50 * MB, times=100)
    return gauge


def test_what_has_just_paid_goes_on_though_chunks_take_long_for_a_moment() -> None:
    gauge = paid_and_slow()
    assert gauge.speed() < 100 * MB
    assert busy(gauge, 105.0, 106.0, 100 * MB, on=140 * MB, off=100 * MB) == 1.0


def test_what_has_paid_and_pays_no_more_ends() -> None:
    gauge = paid_and_slow()
    busy(gauge, 105.0, 106.5, 100 * MB, on=60 * MB, off=100 * MB)
    assert busy(gauge, 106.5, 110.0, 100 * MB, on=60 * MB, off=100 * MB) == 0.0


def test_a_pause_ends_what_was_measured_and_the_codecs_speed_counts_again() -> None:
    gauge = paid_and_slow()
    gauge.idle()
    assert gauge.wants(105.5, 100 * MB)
    probes = sum(gauge.wants(107.0, 100 * MB) for _ in range(20))
    assert probes == 4


def test_probes_tell_how_fast_the_codec_is_now() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 50 * MB, times=100)
    assert sum(gauge.wants(100.0, 100 * MB) for _ in range(10)) == 4
    measured(gauge, 400 * MB, times=4)
    assert gauge.wants(100.1, 100 * MB)


def test_it_comes_back_when_it_pays_again() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 300 * MB)
    busy(gauge, 100.0, 110.0, 100 * MB, on=60 * MB, off=100 * MB)
    busy(gauge, 110.0, 200.0, 100 * MB, on=140 * MB, off=100 * MB)
    assert busy(gauge, 200.0, 260.0, 100 * MB, on=140 * MB, off=100 * MB) > 0.95


def test_a_codec_that_is_faster_by_far_is_not_compared() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 300 * MB)
    assert busy(gauge, 100.0, 200.0, 10 * MB, on=14 * MB, off=10 * MB) == 1.0


def test_pauses_are_no_part_of_the_comparison() -> None:
    gauge = CompressionGauge("auto")
    measured(gauge, 300 * MB)
    now = 100.0
    for _ in range(100):  # short transfers, between which nothing is sent
        assert busy(gauge, now, now + 0.3, 100 * MB, on=60 * MB, off=100 * MB) == 1.0
        gauge.idle()
        now += 1.0


@given(
    speeds=st.lists(st.floats(1e6, 1e9), min_size=8, max_size=8),
    rate=st.floats(1e5, 1e10),
    decodes=st.floats(0, 1e9),
    gain=st.floats(0.9, 2.0),
)
def test_beside_probes_it_is_never_on_where_it_could_be_slower(
    speeds: list[float], rate: float, decodes: float, gain: float
) -> None:
    gauge = CompressionGauge("auto")
    for speed in speeds:
        gauge.encoded(1_000_000, int(1_000_000 / gain), 1_000_000 / speed)
    gauge.other_side(decodes)
    answers = [gauge.wants(100.0, rate) for _ in range(9)]
    if answers[-1]:
        assert gauge.speed() >= rate
        assert gauge.gain > 1
    assert sum(answers) == 9 or not answers[-1]


def test_a_lines_gain_is_of_all_that_it_has_carried_lately() -> None:
    gain = WireGain()
    assert gain.value == 1.0
    gain.sent(300_000, 200_000)
    assert gain.value == pytest.approx(1.5)
    gain.sent(200_000, 200_000)  # as it is
    assert gain.value == pytest.approx(1.25)
    for _ in range(400):
        gain.sent(300_000, 300_000)  # compression is off: what it gained before is forgotten
    assert gain.value == pytest.approx(1.0, abs=0.001)


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0.5, 1.0)), min_size=1))
def test_a_lines_gain_lies_between_those_of_its_chunks(chunks: list[tuple[int, float]]) -> None:
    gain = WireGain()
    gains = []
    for before, part in chunks:
        after = max(1, int(before * part))
        gains.append(before / after)
        gain.sent(before, after)
    assert min(gains) - 1e-9 <= gain.value <= max(gains) + 1e-9
