"""A CPU's workers compute in compiled code, or in torch and say why."""

from pathlib import Path

import pytest

from shared.engine import loading
from shared.engine.linear import has_matrix_unit
from shared.engine.model import LlamaModel
from shared.engine.native.model import NativeModel
from shared.engine.runner import TorchRunner
from tests.support.compiled import compiled
from tests.support.tiny_model import tiny_model


@pytest.mark.parametrize("matrix_unit", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("library_has_it", [False, True])
def test_compiled_code_is_used_where_it_is_the_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, matrix_unit: bool, library_has_it: bool
) -> None:
    monkeypatch.setattr(loading, "has_matrix_unit", lambda: matrix_unit)
    library = compiled(matrix_unit=library_has_it)
    runner = loading.load_runner(
        tiny_model(tmp_path),
        dtype=dtype,
        kv_blocks=4,
        block_tokens=16,
        device="cpu",
        threads=1,
        most_running=4,
        library=library,
    )
    only_in_torch = matrix_unit and not library.matrix_unit and dtype == "bfloat16"
    assert isinstance(runner, TorchRunner)
    assert isinstance(runner.model, LlamaModel if only_in_torch else NativeModel)


def test_what_is_compiled_here_is_loaded() -> None:
    compiled()  # skips where there is no compiler
    said: list[str] = []
    library = loading.compiled(said.append)
    assert library is not None
    assert library.matrix_unit <= has_matrix_unit()
    assert said == []


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    said: list[str] = []
    assert loading.compiled(said.append) is None
    assert [word for word in said if "no C++ compiler" in word]
