"""A CPU's workers compute in compiled code, or in torch and say why."""

from pathlib import Path

import pytest

from shared.engine import loading
from shared.engine.model import LlamaModel
from shared.engine.native.model import NativeModel
from shared.engine.runner import TorchRunner
from tests.support.compiled import compiled
from tests.support.tiny_model import tiny_model


@pytest.mark.parametrize(
    ("dtype", "matrix_unit", "kind"),
    [
        ("float32", False, NativeModel),
        ("float32", True, NativeModel),
        ("bfloat16", False, NativeModel),
        ("bfloat16", True, LlamaModel),
    ],
)
def test_compiled_code_is_used_where_it_is_the_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, matrix_unit: bool, kind: type
) -> None:
    monkeypatch.setattr(loading, "has_matrix_unit", lambda: matrix_unit)
    compiled()  # skips where there is no compiler
    said: list[str] = []
    runner = loading.load_runner(
        tiny_model(tmp_path),
        dtype=dtype,
        kv_blocks=4,
        block_tokens=16,
        device="cpu",
        threads=1,
        most_running=4,
        library=loading.compiled(said.append),
    )
    assert isinstance(runner, TorchRunner)
    assert isinstance(runner.model, kind)
    assert said == []


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    said: list[str] = []
    assert loading.compiled(said.append) is None
    assert [word for word in said if "no C++ compiler" in word]
