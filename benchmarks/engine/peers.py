"""Engines of other interpreters as subjects: a process each, told what to do, that says how long it took."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from benchmarks.engine.subjects import some_ids

_WORKER = Path(__file__).with_name("peer_worker.py")
_ROOM = 1024  # tokens that a started batch may draw


class PeerSubject:
    """`kind`: "transformers", "vllm-eager" or "vllm-compiled"; `python`: an interpreter that has it.

    Raises RuntimeError where it does not come up or ends, with the end of what it printed.
    """

    def __init__(self, kind: str, python: str, directory: Path, dtype: str, threads: int, log: Path) -> None:
        self._kind = kind
        self._log = log
        with log.open("w") as said:
            self._process = subprocess.Popen(
                [python, str(_WORKER), kind, str(directory), "--dtype", dtype, "--threads", str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            end = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(
                f"{self._kind} ended with {self._process.wait()}; the end of {self._log}:\n{end}"
            )
        answer: dict[str, float] = json.loads(line)
        return answer

    def _ask(self, **asked: object) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._read()["seconds"]

    def prefill(self, tokens: int) -> float:
        return self._ask(do="prefill", ids=some_ids(tokens, 1))

    def start(self, batch: int, context: int) -> None:
        self._ask(do="start", rows=[some_ids(context, at) for at in range(batch)], room=_ROOM)

    def extend(self, tokens: int) -> float:
        """One decode step of the batch; peers are not asked for more."""
        assert tokens == 1
        return self._ask(do="decode")

    def back(self, tokens: int) -> None:
        """Peers only decode onwards."""

    def resident(self) -> int:
        """Bytes of memory now."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
