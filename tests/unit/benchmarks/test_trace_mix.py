"""The line in virtual time: every byte once, never faster than the line, and an order that can be checked
by hand.
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from benchmarks.transport.agentic import Arrival, arrivals, sessions
from benchmarks.transport.disciplines import fair_share, first_come
from benchmarks.transport.shared_line import CHUNK, SharedLine
from benchmarks.transport.trace_mix import Mix, plot, results, simulate

RATE = 100e6


def some(count: int, seed: int, load: float = 0.9) -> list[Arrival]:
    draw = random.Random(seed)
    now, made = 0.0, []
    for at in range(count):
        size = int(draw.paretovariate(1.3) * 1e6)
        made.append(Arrival(now, size, at))
        now += draw.expovariate(load * RATE / 4.3e6)
    return made


def busy_time(coming: list[Arrival]) -> float:
    """When a line that never idles while there is work has carried all."""
    now = 0.0
    for each in coming:
        now = max(now, each.at) + each.size / RATE
    return now


@pytest.mark.parametrize("seed", [1, 2])
def test_no_discipline_wastes_or_invents_rate(seed: int) -> None:
    coming = some(400, seed)
    end = pytest.approx(busy_time(coming), abs=1e-6)
    for took in (
        first_come(coming, RATE),
        fair_share(coming, RATE),
        SharedLine(RATE, 1).serve(coming, [0] * 400),
    ):
        assert max(each.at + one for each, one in zip(coming, took, strict=True)) == end
        assert all(one >= each.size / RATE - 1e-9 for each, one in zip(coming, took, strict=True))


def test_senders_together_are_no_faster_than_the_line_and_little_slower() -> None:
    coming = some(400, 3)
    took = SharedLine(RATE, 8).serve(coming, [at % 8 for at in range(400)])
    end = max(each.at + one for each, one in zip(coming, took, strict=True))
    assert busy_time(coming) - 1e-6 <= end <= 1.05 * busy_time(coming)


def test_fair_share_by_hand() -> None:
    coming = [Arrival(0.0, 100, 0), Arrival(0.5, 25, 1)]
    assert fair_share(coming, 100.0) == pytest.approx([1.25, 0.5])


def test_a_short_one_passes_a_long_one_at_half_the_rate() -> None:
    long = 400 * CHUNK
    took = SharedLine(RATE, 1).serve([Arrival(0.0, long, 0), Arrival(0.1, 4 * CHUNK, 1)], [0, 0])
    assert took[1] <= 10 * CHUNK / RATE
    assert took[0] == pytest.approx((long + 4 * CHUNK) / RATE)


def write_trace(path: Path, count: int) -> Path:
    with gzip.open(path, "wt") as out:
        for at in range(count):
            more = f"[50.0,{2000 + 64 * at},30,0,960,1.0,2.0]"
            print(f'{{"session":{at},"requests":[[0.0,1000,50,-1,0,0,1.0],{more}]}}', file=out)
    return path


def test_what_is_missing_of_a_request(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.gz", 2)
    assert sessions(path)[1] == [(0.0, 1000), (50.0, 1104)]
    assert sessions(path, idle=10.0)[1] == [(0.0, 1000), (50.0, 2064)]
    coming = arrivals(sessions(path), 1, load=0.5, rate=1000.0, token_bytes=10)
    assert sum(each.size for each in coming) == 10 * (2000 + 1040 + 1104)
    assert [each.at for each in coming] == sorted(each.at for each in coming)


def test_the_whole_case_on_a_small_trace(tmp_path: Path) -> None:
    mix = Mix(trace=write_trace(tmp_path / "t.gz", 120), seeds=(1, 2), senders=(1, 2), token_bytes=1_000_000)
    runs = simulate(mix)
    found = {each.case: each for each in results(mix, runs)}
    assert len(found) == 11
    assert all('"ratio"' in each.line("transport") for each in found.values())
    plot(runs, tmp_path / "plots" / "mix.png")
    with pytest.raises(FileNotFoundError, match="--trace"):
        simulate(Mix(trace=tmp_path / "none.gz"))
