"""What is read from a model's directory."""

import json
from pathlib import Path

import pytest

from services.router.front.tokens import Tokenizer, load_tokenizer
from shared.errors import ModelError
from tests.support.small_tokenizer import small_tokenizer


def test_both_ways_of_encoding_agree(tokenizer: Tokenizer) -> None:
    text = "hello world, the answer is 😀<|im_end|>\n" * 50
    assert tokenizer.encode(text) == tokenizer.encode_aside(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.piecewise


def test_eos_ids_come_from_tokenizer_and_generation_config(tmp_path: Path) -> None:
    directory = small_tokenizer(tmp_path)
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [0, 2], "temperature": 0.7, "top_k": 20, "repetition_penalty": None})
    )
    facts = load_tokenizer(directory).facts
    assert facts.eos_ids == (2, 0)
    assert facts.sampling == {"temperature": 0.7, "top_k": 20.0}


def test_template_file_wins(tmp_path: Path) -> None:
    directory = small_tokenizer(tmp_path)
    (directory / "chat_template.jinja").write_text("from the file")
    template = load_tokenizer(directory).facts.template
    assert template is not None
    assert template.render([]) == "from the file"


def test_no_template(tmp_path: Path) -> None:
    assert load_tokenizer(small_tokenizer(tmp_path, template=None)).facts.template is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "{}", "vocab_size"),
        ("config.json", "[", "config.json"),
        ("tokenizer.json", "nonsense", "tokenizer.json"),
        ("config.json", '{"vocab_size": 9}', "max_position_embeddings"),
    ],
)
def test_a_bad_directory_is_refused_by_file_and_key(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    directory = small_tokenizer(tmp_path)
    (directory / name).write_text(content)
    with pytest.raises(ModelError, match=said):
        load_tokenizer(directory)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json.*No such file"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_puts_a_space_before_texts_is_not_piecewise(tmp_path: Path) -> None:
    directory = small_tokenizer(tmp_path)
    spec = json.loads((directory / "tokenizer.json").read_text())
    spec["pre_tokenizer"]["add_prefix_space"] = True
    (directory / "tokenizer.json").write_text(json.dumps(spec))
    assert not load_tokenizer(directory).piecewise
