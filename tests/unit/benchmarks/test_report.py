"""Verdicts: what is clearly on one side of a bound is met or missed, all else is undecided."""

from __future__ import annotations

import json

import pytest

from benchmarks.report import Quartiles, Result, bounded, machine, paired, quartiles, table
from benchmarks.transport.loopback import Run


@pytest.mark.parametrize(
    ("ratio", "most", "verdict"),
    [
        ((0.91, 0.95, 0.99), False, "met"),
        ((0.80, 0.95, 0.99), False, "undecided"),
        ((0.70, 0.80, 0.89), False, "missed"),
        ((0.70, 0.80, 0.89), True, "met"),
        ((0.91, 0.95, 0.99), True, "missed"),
    ],
)
def test_a_verdict_needs_both_quartiles_on_one_side(ratio: Quartiles, most: bool, verdict: str) -> None:
    assert Result("c", 1.0, "s", 1.0, ratio, 0.9, most).verdict == verdict


def test_pairs_are_compared_one_by_one() -> None:
    result = paired("c", [10.0, 40.0, 90.0], [10.0, 20.0, 30.0], "s", 1.5, chunk=3)
    assert result.ratio == (1.5, 2.0, 2.5)
    shown = json.loads(result.line("b"))
    assert shown["ratio_quartiles"] == [1.5, 2.5]
    assert (shown["value"], shown["baseline"], shown["pairs"], shown["chunk"]) == (40.0, 20.0, 3, 3)
    assert shown["verdict"] == "met"
    assert paired("c", [1.0, 1.001], [1.0, 1.0], "s", 1.0).verdict == "undecided"  # within the noise
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)


def test_a_bound_of_the_value_itself() -> None:
    late = bounded("c", [12.0, 13.0, 14.0], "ms", 10.0, most=True, baselines=[6.0, 6.5, 7.0], why="x")
    shown = json.loads(late.line("router"))
    told = [shown[key] for key in ("bench", "verdict", "must", "why")]
    assert told == ["router", "missed", "<= 10", "x"]
    assert (shown["value"], shown["value_quartiles"], shown["ratio"]) == (13.0, [12.5, 13.5], 2.0)
    assert bounded("c", [9.0, 9.5, 10.0], "ms", 10.0, most=True).verdict == "met"
    assert bounded("c", [9.0, 11.0], "1/s", 10.0, most=False).verdict == "undecided"


def test_a_table_names_every_case() -> None:
    lines = table([Result("a", 1.0, "s"), paired("longer", [2.0, 2.0], [1.0, 1.0], "s", 1.0)]).splitlines()
    assert [line.split()[0] for line in lines] == ["case", "a", "longer"]
    assert lines[2].endswith("met")
    assert machine()["cpus"]


def test_the_rate_of_a_run_after_its_start() -> None:
    run = Run(((10.0, 0), (11.0, 100), (12.0, 1100), (13.0, 2100)))
    assert run.rate() == 700.0
    assert run.rate(skip=1.0) == 1000.0
