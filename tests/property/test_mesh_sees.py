"""The random lives of the mesh see what they are for: with one check switched off, some life fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.router.endings import Endings
from services.router.lifecycle import Request
from services.router.log import Log, Outcome, Run
from services.router.orders import Orders
from shared.errors import MeshError
from shared.kv.ledger import Ledger
from shared.kv.ranges import Ranges
from tests.support.weather import Weather

SEEDS = range(12)


def accept_damage(patch: pytest.MonkeyPatch) -> None:
    """A chunk whose checksum is wrong counts as received."""
    patch.setattr(Ledger, "damaged", Ledger.verified)


def publish_early(patch: pytest.MonkeyPatch) -> None:
    """A block counts as whole with its first chunk."""
    patch.setattr(Ranges, "covers", lambda ranges, first, end: True)


def append_twice(patch: pytest.MonkeyPatch) -> None:
    """The part of a run that the log has is appended again."""
    join = Log._join

    def append(log: Log, term: int, run: Run, outcome: Outcome) -> None:
        join(log, term, Run(len(log), run.ids, run.logprobs), outcome)

    patch.setattr(Log, "_join", append)


def name_terms_twice(patch: pytest.MonkeyPatch) -> None:
    """A term does not grow with every owner."""
    patch.setattr(Request, "next_term", lambda r: max(r.term, 1))


def forget_releases(patch: pytest.MonkeyPatch) -> None:
    """Workers are not told that a request is over."""
    patch.setattr(Orders, "release", lambda orders, r, leg, *, align=False: orders.drop(leg))


def forget_alignments(patch: pytest.MonkeyPatch) -> None:
    """Main decode is owed nothing when an answer ends early."""

    def align(endings: Any, now: float, r: Any) -> None:
        endings._release_all(r)
        endings._close(now, r)

    patch.setattr(Endings, "_align", align)


@pytest.mark.parametrize(
    ("switch_off", "harms"),
    [
        (accept_damage, ("damage",)),
        (publish_early, ()),
        (append_twice, ()),
        (name_terms_twice, ()),
        (forget_releases, ()),
        (forget_alignments, ()),
    ],
)
def test_a_check_that_is_switched_off_is_missed(
    switch_off: Callable[[pytest.MonkeyPatch], None], harms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    assert any(_fails(seed, harms) for seed in SEEDS), f"{len(SEEDS)} lives went well without it"


def _fails(seed: int, harms: tuple[str, ...]) -> bool:
    try:
        Weather(seed, requests=5, harms=harms).play()
    except (AssertionError, LookupError, RuntimeError, MeshError):
        return True
    return False
