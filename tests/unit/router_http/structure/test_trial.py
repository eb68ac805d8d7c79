"""Grammars are tried aside, within a time, a few at once."""

import asyncio
import threading
from pathlib import Path

import pytest

from services.router.front.structure.form import Form
from services.router.front.structure.grammar import Wanted
from services.router.front.structure.schema import check_schema
from services.router.front.structure.trial import Trials, _Faults
from services.router.front.tokens import load_tokenizer
from shared.engine.grammar import Grammars
from shared.errors import InvalidRequest, NotBuilt, Unavailable
from tests.support.small_tokenizer import small_tokenizer

WANTED = Wanted(Form("guided_regex", regex="a+"))


class Stuck(Trials):
    """Each grammar takes until the test lets it go."""

    go = threading.Event()

    def _make(self, wanted: Wanted, grammars: Grammars) -> str:
        assert self.go.wait(10)
        return super()._make(wanted, grammars)


async def test_what_takes_too_long_is_refused_and_keeps_its_seat(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small_tokenizer(tmp_path / "model"))
    Stuck.go.clear()
    trials = Stuck(tokenizer, patience=0.05)
    refused = await asyncio.gather(*(trials.grammar(WANTED) for _ in range(3)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in refused) == [
        "InvalidRequest",
        "InvalidRequest",
        "Unavailable",
    ]
    for one in refused:
        assert isinstance(one, InvalidRequest | Unavailable)
        assert one.param is None or one.param == "guided_regex"
        assert "guided_regex" in str(one)
    Stuck.go.set()
    async with asyncio.timeout(5):
        while True:
            try:
                assert "a+" in await Trials.grammar(trials, WANTED)
                break
            except (InvalidRequest, Unavailable):
                continue


async def test_a_vocabulary_without_grammars(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small_tokenizer(tmp_path / "model"))
    tokenizer.grammars = None
    trials = Trials(tokenizer)
    with pytest.raises(NotBuilt, match="guided_regex"):
        await trials.grammar(WANTED)
    assert await trials.grammar(Wanted()) == ""


class Finder:
    """Finds the same fault in every schema, and remembers which it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> str:
        self.asked.append(text)
        return "wrong"


def test_what_is_kept_of_schemas_does_not_grow_with_them() -> None:
    finder = Finder()
    faults = _Faults(finder)
    texts = [f"{at}" + "x" * 100_000 for at in range(3)]
    assert [faults(text) for text in texts * 2] == ["wrong"] * 6
    assert finder.asked == texts
    assert sum(map(len, faults._found)) == 3 * 16


@pytest.mark.parametrize("keyword", ["enum", "properties"])
def test_a_schema_too_large_for_any_grammar_is_not_even_tried(keyword: str) -> None:
    finder = Finder()
    names = ["a" * 100_000, "b" * 100_000]
    values = names if keyword == "enum" else dict.fromkeys(names, True)
    with pytest.raises(InvalidRequest, match="bytes as a grammar, of 131072 at most"):
        check_schema({"type": "object", keyword: values}, "response_format", _Faults(finder))
    assert finder.asked == []
