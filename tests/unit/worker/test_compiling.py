"""Grammars are prepared in a thread; the loop goes on."""

import asyncio
from pathlib import Path

from shared.engine.grammar import load_grammars
from shared.worker.compiling import Compiling
from tests.support.small_tokenizer import small_tokenizer


async def test_a_grammar_is_prepared_once_and_told_of(tmp_path: Path) -> None:
    grammars = load_grammars(small_tokenizer(tmp_path / "model"))
    woken = asyncio.Event()
    gate = Compiling(grammars, woken.set)
    for text in ("start: /a+/", "start: nothing"):
        woken.clear()
        assert not gate.ready(text)
        assert not gate.ready(text)
        async with asyncio.timeout(5):
            await woken.wait()
        assert gate.ready(text)  # one that cannot be compiled as well: the draw says so
    assert not gate.ready("start: /b+/")
    await gate.close()
    assert grammars.known("start: /b+/")
