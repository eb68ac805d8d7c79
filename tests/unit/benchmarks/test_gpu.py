"""The GPU's script runs from end to end where there is no GPU, and its checks hold there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from tests.support.tiny_model import TinyShape, tiny_model


def test_the_whole_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path / "model", 1, TinyShape(head_dim=16))
    out = tmp_path / "results.jsonl"
    arguments = ["gpu", "--device", "cpu", "--tiny", "--model", str(model), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    gpu.main()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["bench"] for line in lines} == {"gpu"}
    judged = [line for line in lines if "verdict" in line]
    assert len(judged) > 10
    assert [line for line in judged if line["verdict"] != "met"] == []
    assert any("block-major" in line["case"] for line in lines)
    assert any("without graphs" in line["case"] for line in lines)


def test_no_gpu_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main()
    assert "--device cpu --tiny" in capsys.readouterr().err
