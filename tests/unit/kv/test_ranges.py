from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shared.kv.ranges import Ranges

SPAN = st.tuples(st.integers(0, 30), st.integers(1, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(SPAN, max_size=12), SPAN)
def test_equals_a_set_of_bytes(spans: list[tuple[int, int]], probe: tuple[int, int]) -> None:
    ranges, truth = Ranges(), set[int]()
    for first, end in spans:
        ranges.add(first, end)
        truth.update(range(first, end))
    listed = list(ranges)
    assert {byte for first, end in listed for byte in range(first, end)} == truth
    # Merged and ascending: no two of them touch.
    assert all(before[1] < after[0] for before, after in pairwise(listed))
    wanted = set(range(*probe))
    assert ranges.overlaps(*probe) == bool(wanted & truth)
    assert ranges.covers(*probe) == (wanted <= truth)
    assert bool(ranges) == bool(truth)


def test_neighbours_merge() -> None:
    ranges = Ranges()
    ranges.add(0, 4)
    ranges.add(8, 12)
    assert list(ranges) == [(0, 4), (8, 12)]
    assert not ranges.overlaps(4, 8)
    ranges.add(4, 8)
    assert list(ranges) == [(0, 12)]
