"""A short run of chaos, judged by what does not depend on the machine's speed; and the judge itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.chaos.judging import Difference, Tally, Trouble, difference, is_red, verdict
from tests.chaos.stage import Held, leaked
from tests.chaos.story import Plan, run

RUN = list(range(100, 160))


@pytest.mark.timeout(240)
def test_whatever_breaks_clients_are_told_each_id_once_and_nothing_is_left(tmp_path: Path) -> None:
    plan = Plan(seconds=8.0, seed=7, clients=6, burst=6, gap=1.0, quiet=3.0, patience=90.0)
    outcome = asyncio.run(run(plan, tmp_path))
    assert not is_red(outcome.line), (json.dumps(outcome.line), outcome.notes, outcome.script)
    assert sum(outcome.line["faults"].values()) >= 4  # type: ignore[attr-defined]
    assert outcome.line["finished"]


@pytest.mark.parametrize(
    ("told", "ended", "found"),
    [
        (RUN, True, Difference()),
        (RUN[:7], False, Difference()),
        (RUN[:7], True, Difference(missing=53, at=7)),
        ([*RUN, 1], True, Difference(duplicated=1, at=60)),
        (RUN[:20] + RUN[17:], True, Difference(duplicated=3, at=20)),
        (RUN[:20] + RUN[21:], True, Difference(missing=1, at=20)),
        ([*RUN[:20], 9, *RUN[21:]], True, Difference(wrong=40, at=20)),
        ([], True, Difference(missing=60, at=0)),
        ([*RUN[:59], 9], True, Difference(wrong=1, at=59)),
    ],
)
def test_how_runs_differ_is_told(told: list[int], ended: bool, found: Difference) -> None:
    assert difference(told, RUN, ended=ended) == found


def test_calm_time_is_what_no_trouble_covers() -> None:
    trouble = Trouble(spans=[(5.0, 8.0), (7.0, 9.0), (20.0, float("inf"))])
    assert trouble.calm(0.0, 10.0) == 6.0
    assert trouble.calm(6.0, 7.0) == 0.0
    assert trouble.calm(10.0, 30.0) == 10.0
    assert trouble.during(9.5, 10.0, after=1.0)
    assert not trouble.during(9.5, 10.0, after=0.1)


def test_what_is_held_at_rest_is_a_leak() -> None:
    rest = {"pool_blocks": 8.0, "pool_free": 5.0, "pool_cached": 3.0, "held_pins": 0.0, "tasks": 9.0}
    before = Held(rest, 4)
    assert not leaked("prefill", before, before)
    assert leaked("prefill", Held(rest | {"held_pins": 2.0}, 4), before) == {"held_pins": 2.0}
    assert leaked("relay", Held(rest | {"pool_free": 4.0}, 5), before) == {"blocks": 1.0, "sockets": 1}
    assert leaked("relay", Held(rest | {"tasks": 11.0}, 4), before) == {"tasks": 2.0}


@pytest.mark.parametrize("kind", ["wrong", "duplicated", "missing", "hangs"])
def test_one_bad_thing_is_red(kind: str) -> None:
    tally = Tally()
    assert not is_red(verdict(tally, {}, {}, [], []))
    setattr(tally, kind, 1)
    assert is_red(verdict(tally, {}, {}, [], []))
    assert is_red(verdict(Tally(), {}, {"main-0": {"held_pins": 1.0}}, [], []))
    assert is_red(verdict(Tally(), {}, {}, [], ["main-0 ended with 1"]))
