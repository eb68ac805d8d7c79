"""Texts cut for the tokenizer have exactly the ids of the whole, whatever is known of them before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.model_cache import model_dir
from services.router.front.prompts import Prompts
from services.router.front.segments import LEAST, PIECE, Cutter, SegmentMemory
from services.router.front.tokens import Tokenizer, load_tokenizer
from tests.support.small_tokenizer import small_tokenizer

SALT = b"tenant"
PIECES = st.sampled_from(
    [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>user\n",
        "<|im_end|>\n",
        "<|im_start",
        "|>",
        "<|",
        "<mask>",
        "<mask",
        " <pad> ",
        "<think>",
        "hello world, ",
        "the answer",
        "  ",
        "\n\n",
        "don't ",
        "123456",
        "é",
        "\u0301",
        "😀",
        "日本",
        "\t",
        "",
        "some words that are parted ",
        "It's 2 o'clock in A1 and b ",
        "x" * 700,
        "naïve café über ",
    ]
)
TEXTS = st.lists(st.tuples(PIECES, st.one_of(st.integers(1, 40), st.just(300))), max_size=12).map(
    lambda parts: "".join(piece * count for piece, count in parts)
)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Marks that take white space with them, that stand alone only, and that begin inside one another."""
    directory = small_tokenizer(
        tmp_path_factory.mktemp("odd") / "model", marks=[("<mask>", True), ("<pad>", False)]
    )
    path = directory / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    for token in spec["added_tokens"]:
        if token["content"] == "<mask>":
            token["lstrip"] = token["rstrip"] = True
        if token["content"] == "<pad>":
            token["single_word"] = True
    spec["added_tokens"].append(
        {**spec["added_tokens"][-1], "id": spec["added_tokens"][-1]["id"] + 1, "content": "|><|im_start"}
    )
    path.write_text(json.dumps(spec), encoding="utf-8")
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(small_tokenizer(tmp_path_factory.mktemp("plain") / "model"))


def check(tokenizer: Tokenizer, text: str) -> None:
    parts = tokenizer.cutter.parts(text)
    assert "".join(parts) == text
    assert all(len(part) >= LEAST for part in parts[:-1])
    joined = [token for part in parts for token in tokenizer.encode_aside(part)]
    assert joined == tokenizer.encode(text)


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_cut_texts_have_the_ids_of_the_whole(plain: Tokenizer, odd: Tokenizer, text: str) -> None:
    check(plain, text)
    check(odd, text)


@pytest.mark.model
def test_the_development_models_tokenizer_too() -> None:
    tokenizer = load_tokenizer(model_dir())

    @settings(max_examples=40, deadline=None)
    @given(TEXTS)
    def texts(text: str) -> None:
        check(tokenizer, text)

    texts()


@settings(max_examples=15, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.sampled_from((1, 400, 1 << 30)))
async def test_whatever_was_tokenized_before_a_prompt_has_its_own_ids(
    plain: Tokenizer, texts: list[str], add_special: bool, thread_chars: int
) -> None:
    prompts = Prompts(plain, None, thread_chars=thread_chars, threads=2, clock=lambda: 0.0)
    said = ""
    for text in texts:  # a conversation that grows, and each of its parts alone
        said += text
        for one in (said, text, said):
            assert await prompts.encode(one, SALT, add_special=add_special) == plain.encode(
                one, add_special=add_special
            )


def test_parts_are_of_one_tenant_and_bounded() -> None:
    memory = SegmentMemory(10_000)
    part = "x" * LEAST
    memory.remember(SALT, part, [1, 2, 3])
    assert memory.recall(SALT, part) == [1, 2, 3]
    assert memory.recall(b"another", part) is None
    assert memory.recall(SALT, part + "y") is None
    for at in range(200):
        memory.remember(SALT, f"{at} {part}", list(range(at)))
        assert memory.bytes <= 10_000
    assert memory.recall(SALT, part) is None  # the least recently used
    assert memory.recall(SALT, f"199 {part}") == list(range(199))
    memory.remember(SALT, part, list(range(5_000)))  # larger than all of it
    assert memory.recall(SALT, part) is None
    assert len(memory) > 1


def test_without_marks_nothing_is_cut() -> None:
    assert Cutter([], ["<a>"]).parts("<a>" * 1000) == ["<a>" * 1000]


def test_a_text_that_grows_keeps_its_cuts(plain: Tokenizer) -> None:
    said = "some words that go on and on, " * 600
    parts = plain.cutter.parts(said)
    assert len(parts) == len(said) // PIECE + 1
    assert plain.cutter.parts(said + "<|im_end|>" + said)[: len(parts) - 1] == parts[:-1]


def test_words_are_cut_only_where_the_tokenizer_parts_them(tmp_path: Path) -> None:
    said = "some words that go on and on, " * 600
    directory = small_tokenizer(tmp_path / "added", marks=[("that go", False)])
    assert all(part.startswith("that go") for part in load_tokenizer(directory).cutter.parts(said)[1:])
    path = small_tokenizer(tmp_path / "whole") / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    spec["pre_tokenizer"] = {**spec["pre_tokenizer"], "use_regex": False}
    path.write_text(json.dumps(spec), encoding="utf-8")
    assert load_tokenizer(path.parent).cutter.parts(said) == [said]
