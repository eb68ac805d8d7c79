"""Every kernel under Triton's interpreter, in a process of its own; one test per case."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.kernels.interpreted import attention_cases, cache_cases, row_cases

ROOT = Path(__file__).resolve().parents[3]
CASES = [
    f"{module.__name__.rpartition('.')[2]}.{case.__name__}"
    for module in (attention_cases, cache_cases, row_cases)
    for case in module.CASES
]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Callable[[str], dict[str, str]]]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.kernels.interpreted.worker"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    to_worker, from_worker = worker.stdin, worker.stdout

    def run(name: str) -> dict[str, str]:
        to_worker.write(name + "\n")
        to_worker.flush()
        line = from_worker.readline()
        assert line, f"the interpreter's process ended with {worker.wait()}"
        answer: dict[str, str] = json.loads(line)
        return answer

    with worker:
        yield run
        to_worker.close()


@pytest.mark.parametrize("case", CASES)
def test_under_the_interpreter(case: str, interpreter: Callable[[str], dict[str, str]]) -> None:
    failed = interpreter(case).get("failed")
    if failed:
        pytest.fail(failed, pytrace=False)
