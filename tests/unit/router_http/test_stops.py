"""Stop strings: the end does not depend on the pieces, and held text is never lost."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.front.stops import StopStrings

LETTERS = st.text(alphabet="abc", max_size=24)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3)


def run(pieces: Sequence[str], stops: Sequence[str], *, include: bool = False) -> tuple[str, str | None]:
    matcher = StopStrings(stops, include=include)
    shown = ""
    for piece in pieces:
        shown += matcher.add(piece)
    return shown + matcher.end(), matcher.found


def by_definition(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=400, deadline=None)
@given(LETTERS, STOPS, st.lists(st.integers(1, 5), max_size=24), st.booleans())
def test_any_cut_into_pieces_gives_the_definition(
    text: str, stops: list[str], sizes: list[int], include: bool
) -> None:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    pieces.append(text[at:])
    assert run(pieces, stops, include=include) == by_definition(text, stops, include)


def test_held_text_comes_out_when_it_was_no_stop() -> None:
    matcher = StopStrings(["ozzy"])
    assert matcher.add("o") == ""
    assert matcher.add("there") == "othere"
    assert matcher.end() == ""


def test_a_stop_that_completes_later_is_not_shown_at_all() -> None:
    matcher = StopStrings(["ozzy"])
    assert [matcher.add(piece) for piece in ("x o", "zz", "y and more")] == ["x ", "", ""]
    assert matcher.found == "ozzy"
    assert matcher.add("never") == ""
    assert matcher.end() == ""


@pytest.mark.parametrize(("include", "shown"), [(False, "a "), (True, "a END")])
def test_include(include: bool, shown: str) -> None:
    assert run(["a E", "ND b"], ["END"], include=include) == (shown, "END")


def test_not_armed_is_plain_text_but_a_later_end_still_cuts() -> None:
    matcher = StopStrings(["END"])
    assert matcher.add("ENDE", armed=False) == "END"
    assert matcher.add("ND", armed=True) == ""
    assert matcher.found == "END"
