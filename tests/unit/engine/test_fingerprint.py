"""The fingerprint changes with anything that changes tokens, and costs no second read of the weights."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared.engine.fingerprint import fingerprint, template_fingerprint
from shared.errors import ModelError
from tests.support.tiny_model import tiny_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "digests.json"


def flip(path: Path) -> None:
    """Change one bit, and nothing of the file's size."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_equal_bytes_give_equal_fingerprints_wherever_they_lie(
    directory: Path, cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "copy"
    shutil.copytree(directory, other)
    assert fingerprint(directory, cache=cache) == fingerprint(other, cache=cache)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_weights_and_config_change_the_full_part_alone(directory: Path, cache: Path, name: str) -> None:
    before = fingerprint(directory, cache=cache)
    flip(directory / name)
    after = fingerprint(directory, cache=cache)
    assert after.full != before.full
    assert after.template == before.template


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_tokenizer_and_template_change_both(directory: Path, cache: Path, name: str) -> None:
    before = fingerprint(directory, cache=cache)
    flip(directory / name)
    after = fingerprint(directory, cache=cache)
    assert after.full != before.full
    assert after.template != before.template


def test_a_template_file_of_its_own_counts(directory: Path, cache: Path) -> None:
    before = fingerprint(directory, cache=cache)
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(directory, cache=cache).template != before.template


def test_the_template_part_needs_no_weights(directory: Path, cache: Path) -> None:
    whole = fingerprint(directory, cache=cache)
    (directory / "model.safetensors").unlink()
    (directory / "config.json").unlink()
    assert template_fingerprint(directory) == whole.template


def test_weights_are_read_once(directory: Path, cache: Path) -> None:
    before = fingerprint(directory, cache=cache)
    weights = directory / "model.safetensors"
    stat = weights.stat()
    flip(weights)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(directory, cache=cache) == before  # size and time are as they were: not read again
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert fingerprint(directory, cache=cache) != before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": 1}', "\x00"])
def test_a_damaged_cache_only_costs_time(directory: Path, cache: Path, text: str) -> None:
    before = fingerprint(directory, cache=cache)
    cache.write_text(text)
    assert fingerprint(directory, cache=cache) == before
    assert fingerprint(directory, cache=cache) == before


def test_a_cache_that_cannot_be_written_only_costs_time(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert fingerprint(directory, cache=tmp_path / "file" / "digests.json").full


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_what_is_missing_is_named(directory: Path, cache: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelError, match=name.removeprefix("model.")):
        fingerprint(directory, cache=cache)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent"):
        fingerprint(tmp_path / "absent")


def test_neither_torch_nor_numpy_is_imported() -> None:
    code = "import sys, shared.engine.fingerprint; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "safetensors"} & set(done.stdout.split())
