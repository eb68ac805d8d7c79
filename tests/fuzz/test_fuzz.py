"""The kept corpus runs clean and reaches what it was kept for; the search finds what is there to find."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import corpora
from tests.fuzz.edges import Edges
from tests.fuzz.loop import Search
from tests.fuzz.mutations import MOST, mutate
from tests.fuzz.targets import ALLOWED, Target, targets

TARGETS = targets()


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_understood_or_refused(name: str) -> None:
    inputs = [*TARGETS[name].seeds(), *corpora.read(name)]
    assert len(inputs) > 5, "seeds and corpus are there"
    for data in inputs:
        try:
            TARGETS[name].run(data)
        except ALLOWED:
            continue


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_goes_further_than_the_seeds(name: str) -> None:
    seeds, whole = (Search(TARGETS[name], random.Random(1)) for _ in range(2))
    seeds.begin([])
    whole.begin(corpora.read(name))
    assert seeds.findings == whole.findings == []
    assert len(whole.edges) > len(seeds.edges)


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_search_finds_nothing(name: str) -> None:
    search = Search(TARGETS[name], random.Random(2))
    search.begin([])
    search.run(30.0, most=search.tried + 150)
    assert search.findings == []


def _buried(data: bytes) -> None:
    """Understands everything but four bytes in a row, each behind a branch of its own."""
    if data[:1] != b"P":
        return
    if data[1:2] != b"D":
        return
    if data[2:3] == b"!":
        raise KeyError("found")


def test_the_search_finds_what_lies_behind_branches() -> None:
    """One byte after the other: each is a new edge, kept, and gone on from. By chance it were 2^24 inputs."""
    search = Search(Target("buried", _buried, lambda: [b"\0\0\0"], (__file__,)), random.Random(3))
    search.begin([])
    search.run(60.0, most=40_000)
    [finding] = search.findings
    assert isinstance(finding.error, KeyError)
    assert finding.data[:3] == b"PD!"


def test_edges_are_those_of_the_named_files() -> None:
    edges = Edges((__file__,))
    one, other = edges.of(lambda: _buried(b"\0")), edges.of(lambda: _buried(b"PD"))
    assert one
    assert other > one or len(other) > len(one)
    assert not Edges(("/no/such/file.py",)).of(lambda: _buried(b"PD"))


def test_mutations_stay_in_bounds() -> None:
    draw = random.Random(4)
    data = b""
    for _ in range(500):
        data = mutate(data, [b"x" * 5000, data], draw)
        assert len(data) <= MOST
