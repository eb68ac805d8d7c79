"""What is sent again belongs to the cut before it."""

from __future__ import annotations

from benchmarks.transport.long_cases import by_cut


def test_what_is_sent_again_belongs_to_the_cut_before_it() -> None:
    assert by_cut([10.0, 20.0, 30.0], [(10.5, 1.0), (19.9, 2.0), (20.0, 4.0), (99.0, 8.0)]) == [3.0, 4.0, 8.0]
    assert by_cut([10.0], [(9.9, 1.0)]) == [1.0], "a break before the first cut hides nowhere"
