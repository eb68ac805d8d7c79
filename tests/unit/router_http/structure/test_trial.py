"""Grammars are tried aside, within a time, a few at once."""

import asyncio
import threading
from pathlib import Path

import pytest

from services.router.front.structure.form import Form
from services.router.front.structure.grammar import Wanted
from services.router.front.structure.trial import Trials
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
