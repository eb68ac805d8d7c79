"""The small tokenizer, made once."""

from pathlib import Path

import pytest

from services.router.front.tokens import Tokenizer, load_tokenizer
from tests.support.small_tokenizer import small_tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_dir)
