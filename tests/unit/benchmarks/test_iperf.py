"""iperf3 beside ours, both counted as what a reader got; and packets that fit the line's buffer."""

from __future__ import annotations

import pytest

from benchmarks.transport.course import packet
from benchmarks.transport.iperf import progress
from benchmarks.transport.line_cases import Wan, beside
from benchmarks.transport.loopback import Run
from benchmarks.wan.impairment import Impairment


def interval(end: float, size: int) -> dict[str, dict[str, float]]:
    return {"sum": {"start": end - 0.1, "end": end, "seconds": 0.1, "bytes": size}}


def test_time_counts_from_the_first_bytes_on() -> None:
    found = progress({"intervals": [interval(0.1, 0), interval(0.2, 50), interval(0.3, 70)]})
    assert found == ((0.2, 50), (0.3, 120))


def test_the_rate_is_of_what_came_after_the_start_up() -> None:
    sizes = [0, 10, *[40] * 10, *[30] * 20]
    report = {"intervals": [interval((at + 1) / 8, size) for at, size in enumerate(sizes)]}
    assert Run(progress(report)).rate(10 / 8) == pytest.approx(30 * 8)


def test_nothing_is_no_run() -> None:
    with pytest.raises(ChildProcessError):
        progress({"intervals": [interval(0.1, 0)]})


@pytest.mark.parametrize(
    ("line", "most"),
    [
        (Impairment(200, 20, buffer_ms=40), 65_000),
        (Impairment(100, 15, buffer_ms=30), 65_000),
        (Impairment(200, 0.5, buffer_ms=1), 1500),
        (Impairment(1, 20, buffer_ms=40), 1500),
        (Impairment(0, 20, buffer_ms=40), 65_000),
    ],
)
def test_a_buffer_holds_several_packets(line: Impairment, most: int) -> None:
    assert packet(line) == most


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        ([199.5, 199.0, 199.2], [199.8, 199.8, 199.8], "met"),  # both fill it
        ([199.5, 199.0, 199.2], [199.8, 197.0, 199.8], "met"),
        ([199.5, 199.0, 199.2], [207.0, 206.0, 209.0], "met"),  # more than it carries had queued before
        ([207.0, 206.0, 209.0], [199.8, 199.8, 199.8], "met"),
        ([196.0, 196.5, 196.2], [199.8, 199.8, 199.8], "missed"),
        ([199.5, 199.0, 180.0], [199.8, 199.8, 199.8], "undecided"),  # not each of ours does
        ([170.0, 171.0, 172.0], [175.0, 176.0, 177.0], "missed"),
        ([180.0, 181.0, 182.0], [175.0, 176.0, 177.0], "met"),
    ],
)
def test_a_tie_counts_only_where_every_run_of_ours_fills_the_line(
    mine: list[float], theirs: list[float], verdict: str
) -> None:
    line = Wan(200, 40, 128, 2)
    assert beside("a case", mine, theirs, line.payload, {}).verdict == verdict
