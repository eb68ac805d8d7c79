"""Text from ids, one id at a time, equals the library's decoding of the whole, and never ends inside a
character."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.front.detokenizer import Detokenizer
from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.front.vocabulary import read_vocabulary
from shared.errors import ModelError

IDS = st.lists(st.integers(0, 352), max_size=60)
TEXTS = st.text(max_size=40)


def deltas(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer.vocabulary, skip_special=skip_special)
    return [detokenizer.add(token) for token in ids] + [detokenizer.end()]


@pytest.mark.parametrize("skip_special", [True, False])
def test_deltas_join_to_the_full_decoding(
    tokenizer: Tokenizer, tokenizer_dir: Path, skip_special: bool
) -> None:
    library = tokenizers.Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))

    @settings(max_examples=300, deadline=None)
    @given(IDS)
    def check(ids: list[int]) -> None:
        joined = "".join(deltas(tokenizer, ids, skip_special=skip_special))
        assert joined == library.decode(ids, skip_special_tokens=skip_special)
        assert joined == tokenizer.decode(ids, skip_special=skip_special)

    check()


def test_no_delta_holds_a_broken_character(tokenizer: Tokenizer) -> None:
    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        parts = deltas(tokenizer, ids, skip_special=False)
        assert "".join(parts) == text
        assert "\ufffd" in text or not any("\ufffd" in part for part in parts)

    check()


def test_a_character_of_four_tokens_comes_with_its_last_byte(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀")
    assert len(ids) == 4
    assert deltas(tokenizer, ids, skip_special=True) == ["", "", "", "😀", ""]
    assert deltas(tokenizer, ids[:3], skip_special=True) == ["", "", "", "\ufffd"]


def test_an_id_past_the_tokenizer_has_no_text(tokenizer: Tokenizer) -> None:
    assert deltas(tokenizer, [10_000, *tokenizer.encode("a")], skip_special=True) == ["", "a", ""]


def test_sentencepiece_pieces() -> None:
    spec = {
        "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    }
    tokens = {"<s>": 0, "<0xC3>": 1, "<0xA9>": 2, "\u2581the": 3, "<0xZZ>": 4}
    vocabulary = read_vocabulary(tokens, spec)
    assert vocabulary.join([3, 1, 2, 3, 4]) == " thecaf\u00e9 the<0xZZ>".replace("caf", "").encode()
    detokenizer = Detokenizer(vocabulary)
    assert [detokenizer.add(token) for token in (0, 3, 1, 2)] == ["", " the", "", "\u00e9"]


def test_an_unknown_decoder_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="WordPiece"):
        read_vocabulary({"a": 0}, {"decoder": {"type": "WordPiece"}})


@pytest.mark.model
def test_the_development_model_decodes_as_the_library_does() -> None:
    from scripts.model_cache import model_dir

    directory = model_dir()
    tokenizer = load_tokenizer(directory)
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.integers(0, 49151), max_size=50), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        joined = "".join(deltas(tokenizer, ids, skip_special=skip))
        assert joined == library.decode(ids, skip_special_tokens=skip)

    check()
