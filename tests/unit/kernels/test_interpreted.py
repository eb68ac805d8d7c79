"""Every kernel under Triton's interpreter, in a process of its own; one test per case."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.kernels.interpreted import attention_cases, cache_cases, engine_cases, row_cases

ROOT = Path(__file__).resolve().parents[3]
CASES = [
    f"{module.__name__.rpartition('.')[2]}.{case.__name__}"
    for module in (attention_cases, cache_cases, engine_cases, row_cases)
    for case in module.CASES
]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


class Interpreter:
    """The worker process; started again for the next case when a case takes it down (a wild address, say)."""

    def __init__(self) -> None:
        self._worker: subprocess.Popen[str] | None = None

    def run(self, name: str) -> dict[str, str]:
        worker = self._worker = self._worker or self._start()
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(name + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        if not line:
            self.close()
            return {"failed": f"the interpreter's process ended with {worker.returncode}"}
        answer: dict[str, str] = json.loads(line)
        return answer

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.communicate()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.unit.kernels.interpreted.worker"],
            cwd=ROOT,
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    process = Interpreter()
    yield process
    process.close()


@pytest.mark.parametrize("case", CASES)
def test_under_the_interpreter(case: str, interpreter: Interpreter) -> None:
    failed = interpreter.run(case).get("failed")
    if failed:
        pytest.fail(failed, pytrace=False)
