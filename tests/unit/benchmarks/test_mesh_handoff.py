"""What the benchmark of the hand-off measures, on single cells of its matrix."""

from __future__ import annotations

import pytest

from benchmarks.mesh.handoff_seams import RELAYED, Cell, Weights, bound, measure
from shared.wire.messages import Do, Feed, Rid


@pytest.mark.parametrize("mode", ["one-shot", "catch-up"])
def test_a_seam_is_found_and_is_short(mode: str) -> None:
    cell = Cell(mode, backlog=100, rtt_ms=40.0, speed=1.0)
    seams, stalls, weights = measure(cell, 2, 1)
    assert len(seams) == len(stalls) == 2
    for seam in seams:
        assert 0.04 < seam.wait <= bound(cell, seam)
        assert seam.mode == mode.replace("-", "_")
        assert seam.rounds <= 2
        assert seam.given >= 100
    assert max(weights.by_id) <= 6.0


def test_cuts_at_once_take_turns() -> None:
    cell = Cell("catch-up", backlog=30, rtt_ms=40.0, speed=1.0, at_once=12)
    seams, _, _ = measure(cell, 1, 1)
    assert len(seams) == 12
    assert all(seam.wait <= bound(cell, seam) for seam in seams)
    assert RELAYED.cuts_at_once < 12


def test_without_a_relay_the_second_id_waits_for_the_line() -> None:
    seams, stalls, _ = measure(Cell("no relay", backlog=100, rtt_ms=40.0, speed=1.0), 1, 1)
    assert not seams
    assert stalls[0] > 1.9


def test_ids_are_weighed_with_their_frame() -> None:
    weights = Weights()
    feed = Feed(Rid(1 << 63, 1), 2, 100, Do.OWN)
    weights.see("r", "md1", feed, bytes(4 * 31))
    assert not weights.by_id
    weights.see("r", "md1", feed, bytes(4 * 32))
    assert 4.0 < weights.by_id[0] <= 6.0
