"""The cached model is trusted only as long as its files are those that were checked."""

import os
import shutil
from pathlib import Path

import pytest

from scripts.model_cache import NAME, STAMP, _stamp_holds, _wrong_files, model_dir

pytestmark = pytest.mark.model


@pytest.fixture
def copy(tmp_path: Path, model_directory: Path) -> Path:
    """A cache of its own: the weights linked, the small files copied, not yet checked."""
    target = tmp_path / NAME
    target.mkdir()
    for path in model_directory.iterdir():
        if path.name == "model.safetensors":
            os.link(path.resolve(), target / path.name)
        elif path.name != STAMP:
            shutil.copyfile(path, target / path.name)
    return target


def test_a_whole_directory_is_checked_once_and_then_trusted(copy: Path) -> None:
    assert not _stamp_holds(copy)
    assert model_dir(root=copy.parent) == copy
    assert _stamp_holds(copy)


def test_a_change_ends_the_trust_and_is_found(copy: Path) -> None:
    model_dir(root=copy.parent)
    config = copy / "config.json"
    config.write_text(config.read_text().replace("9", "8", 1))
    assert not _stamp_holds(copy)
    assert _wrong_files(copy) == ["config.json"]


def test_a_missing_file_is_found(copy: Path) -> None:
    model_dir(root=copy.parent)
    (copy / "tokenizer.json").unlink()
    assert not _stamp_holds(copy)
    assert _wrong_files(copy) == ["tokenizer.json"]


def test_a_damaged_stamp_is_not_believed(copy: Path) -> None:
    model_dir(root=copy.parent)
    (copy / STAMP).write_text("{")
    assert not _stamp_holds(copy)
