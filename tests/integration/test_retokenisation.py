"""The real tokenizer: answers whose ids are not those of their text come back as drawn, 8 turns of 8."""

from __future__ import annotations

import random

import pytest

from scripts.model_cache import model_dir
from services.router.front.tokens import Tokenizer, load_tokenizer
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import Door

BLOCK = 32
TEXTS = (
    "The capital of France is Paris; it lies on the Seine, and about 2,102,650 people live there (2023).",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))  # -> 3\n",
    "Ich weiß nicht, was soll es bedeuten, daß ich so traurig bin.",
    "日本語の文章もあります。絵文字 🎉🎊 も。",
    "1. one\n2. two\n\n   - three\n\t- four",
    "unbelievably    spaced      words",
    "x = {'a': [1, 2, 3], \"b\": None}",
    "Antidisestablishmentarianism isn't pneumonoultramicroscopicsilicovolcanoconiosis.",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(model_dir())


def other_ids(tokenizer: Tokenizer, text: str, seed: int) -> list[int]:
    """Ids of the same text as a model at temperature 1 may draw them: some tokens in pieces."""
    chosen = random.Random(seed)
    ids: list[int] = []
    for token in tokenizer.encode(text * 4):
        piece = tokenizer.decode([token])
        parts = list(piece) if chosen.random() < 0.3 and "\ufffd" not in piece else [piece]
        ids += [one for part in parts for one in tokenizer.encode(part)] if len(parts) > 1 else [token]
    return ids


@pytest.mark.model
async def test_second_turns_hit_every_block_of_the_answer(tokenizer: Tokenizer) -> None:
    changed = 0
    for seed, text in enumerate(TEXTS):
        drawn = other_ids(tokenizer, text, seed)
        assert tokenizer.decode(drawn) == text * 4
        door = Door(tokenizer, FakeGenerator(says(*drawn)), max_context=8192)
        turns = [{"role": "user", "content": "Tell me."}]
        said = (await door.chat(messages=turns)).json()["choices"][0]["message"]["content"]
        turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
        await door.chat(messages=turns)
        one, two = door.generator.requests
        log = [*one.ids, *drawn, 2]
        full = len(log) // BLOCK * BLOCK
        assert full > len(one.ids)
        assert two.ids[:full] == log[:full]
        rendered = text_of(tokenizer, turns)
        assert tokenizer.vocabulary.join(two.ids) == rendered.encode()
        changed += tokenizer.encode(rendered)[:full] != log[:full]
    assert changed >= 5  # tokenized anew, most would have missed


def text_of(tokenizer: Tokenizer, turns: list[dict[str, str]]) -> str:
    template = tokenizer.facts.template
    assert template is not None
    return template.render(turns)
