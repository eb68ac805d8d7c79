"""A short run of chaos, judged by what does not depend on the machine's speed; and the judge itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.chaos.judging import Difference, Must, Tally, Trouble, difference, is_red, missed, verdict
from tests.chaos.scene import FEW, TWO_ROUTERS, Scene
from tests.chaos.stage import Held, leaked
from tests.chaos.story import SEEN, Plan, hastily, really, run

RUN = list(range(100, 160))


@pytest.mark.timeout(400)
def test_whatever_breaks_clients_are_told_each_id_once_and_nothing_is_left(tmp_path: Path) -> None:
    """Two routers over the same workers."""
    scene = Scene(nodes=TWO_ROUTERS)
    plan = Plan(seconds=60.0, seed=7, clients=6, burst=6, gap=1.0, quiet=3.0, patience=90.0, scene=scene)
    outcome = asyncio.run(run(plan, tmp_path))
    assert not is_red(outcome.line), (json.dumps(outcome.line), outcome.notes, outcome.script)
    assert sum(outcome.line["faults"].values()) >= 4  # type: ignore[attr-defined]
    assert outcome.line["finished"]


@pytest.mark.model
@pytest.mark.timeout(400)
def test_a_real_model_is_broken_too(model_directory: Path, tmp_path: Path) -> None:
    """A short run with the development model: every id is the reference's in its context (I7)."""
    plan = Plan(seconds=10.0, seed=2, clients=4, gap=1.0, quiet=4.0, patience=120.0, scene=Scene(nodes=FEW))
    outcome = asyncio.run(run(really(plan, model_directory), tmp_path))
    assert not is_red(outcome.line), (json.dumps(outcome.line), outcome.notes, outcome.script)
    assert outcome.line["finished"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", SEEN)
def test_a_check_that_is_switched_off_turns_the_run_red(check: str, tmp_path: Path) -> None:
    """In real processes; `property/test_mesh_sees.py` has the same in virtual time."""
    outcome = asyncio.run(run(hastily(Plan(seed=7), check), tmp_path))
    assert is_red(outcome.line), (json.dumps(outcome.line), outcome.notes, outcome.script)


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


@pytest.mark.parametrize(
    ("away", "rightly"),
    [
        ({"m0": [(60.0, 110.0)], "m1": [(69.0, float("inf"))]}, True),
        ({"m0": [(60.0, 80.0), (79.0, 99.0)], "m1": [(69.0, 110.0)]}, True),
        ({"m0": [(60.0, 80.0), (81.5, 110.0)], "m1": [(69.0, 110.0)]}, True),  # it had not joined yet
        ({"m0": [(60.0, 80.0), (84.0, 110.0)], "m1": [(69.0, 110.0)]}, False),
        ({"m0": [(71.0, 110.0)], "m1": [(60.0, 110.0)]}, False),
        ({"m0": [(60.0, 110.0)], "p0": [(60.0, 110.0)]}, False),
        ({"m0": [(60.0, 97.0)], "m1": [(60.0, 110.0)]}, False),
        ({"p0": [(60.0, 110.0)]}, False),
        ({"p0": [(60.0, 110.0)], "p1": [(70.0, 110.0)]}, True),
        ({}, False),
    ],
)
def test_an_answer_is_given_up_rightly_while_a_role_has_nobody(
    away: dict[str, list[tuple[float, float]]], rightly: bool
) -> None:
    trouble = Trouble(away=away, fellows=[["m0", "m1"], ["p0", "p1"]])
    assert trouble.gives_up_rightly(100.0, 30.0, after=2.0) is rightly


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


def test_a_whole_run_has_to_show_more_than_that_it_is_right() -> None:
    good = verdict(Tally(finished=99, lost=1), {"kill": 150}, {}, [0.5] * 8, [])
    assert not missed(good, Must())
    assert missed(good | {"faults": {"kill": 149, "disconnect": 99}}, Must()) == ["149 faults, not 150"]
    assert missed(good | {"recovery_s": [0.5] * 7 + [5.1]}, Must()) == ["recovery took 5.1 s, not 5"]
    assert missed(good | {"recovery_s": [0.5] * 7}, Must()) == ["7 quiet windows, not 8"]
    assert len(missed(verdict(Tally(finished=98, lost=2), {"kill": 150}, {}, [0.5] * 8, []), Must())) == 1
    assert len(missed(good | {"errors_not_allowed": {"500": 1}}, Must())) == 1
