"""Decode, prefill and extend of the engine against a plain forward: interleaved pairs, one JSON line a case.

`python -m benchmarks.engine [--dtypes bfloat16,float32] [--threads 1,2] [--pairs 7] [--cases decode,prefill]`
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.engine.cases import CONTEXT, LONG_CONTEXT, EngineSubject, PlainSubject, Subject
from scripts.model_cache import model_dir

FAMILIES = "decode,prefill,extend"


@dataclass(frozen=True)
class Decode:
    """Tokens per second of a batch at context 512, over `STEPS` steps."""

    batch: int

    STEPS: ClassVar[int] = 8

    @property
    def name(self) -> str:
        return f"decode/{self.batch}"

    @property
    def tokens(self) -> int:
        return self.batch * self.STEPS

    def prepare(self, subject: Subject) -> None:
        subject.start(self.batch, CONTEXT)

    def seconds(self, subject: Subject) -> float:
        return self.STEPS * statistics.median(subject.extend(1) for _ in range(self.STEPS))


@dataclass(frozen=True)
class Prefill:
    """Tokens per second of a prompt from nothing."""

    tokens: int

    @property
    def name(self) -> str:
        return f"prefill/{self.tokens}"

    def prepare(self, subject: Subject) -> None:
        subject.prefill(64)

    def seconds(self, subject: Subject) -> float:
        return subject.prefill(self.tokens)


@dataclass(frozen=True)
class Extend:
    """`tokens` new tokens at context 2,048."""

    tokens: int

    @property
    def name(self) -> str:
        return f"extend/{self.tokens}"

    def prepare(self, subject: Subject) -> None:
        subject.start(1, LONG_CONTEXT)

    def seconds(self, subject: Subject) -> float:
        taken = subject.extend(self.tokens)
        subject.back(self.tokens)
        return taken


def cases(name: str) -> list[Decode] | list[Prefill] | list[Extend]:
    """The cases of one family. Raises ValueError for an unknown one."""
    if name == "decode":
        return [Decode(batch) for batch in (1, 4, 16)]
    if name == "prefill":
        return [Prefill(tokens) for tokens in (512, 2048)]
    if name == "extend":
        return [Extend(1 << power) for power in range(10)]
    raise ValueError(f"{name!r} is none of {FAMILIES}")


def measure(case: Decode | Prefill | Extend, subjects: dict[str, Subject], pairs: int) -> dict[str, object]:
    """Medians of interleaved runs, and the median of the pairs' ratios with quartiles."""
    seconds: dict[str, list[float]] = {each: [] for each in subjects}
    for subject in subjects.values():
        case.prepare(subject)
        case.seconds(subject)
    for _ in range(pairs):
        for each, subject in subjects.items():
            seconds[each].append(case.seconds(subject))
    line: dict[str, object] = {"case": case.name}
    for each, taken in seconds.items():
        line[f"{each}_ms"] = round(statistics.median(taken) * 1e3, 2)
        line[f"{each}_tokens_per_s"] = round(case.tokens / statistics.median(taken), 1)
    if len(seconds) == 2:
        ours, theirs = seconds.values()
        ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        line["speedup"] = round(middle, 3)
        line["quartiles"] = [round(low, 3), round(high, 3)]
    return line


def header() -> dict[str, object]:
    """What the numbers belong to."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "amx": torch.cpu._is_amx_tile_supported(),
    }


def main() -> None:
    """Parse options and print lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--cases", default=FAMILIES)
    parser.add_argument("--alone", action="store_true", help="without the plain forward")
    options = parser.parse_args()
    directory = options.model or model_dir()
    print(json.dumps(header()), flush=True)
    for dtype in options.dtypes.split(","):
        for threads in map(int, options.threads.split(",")):
            subjects: dict[str, Subject] = {"engine": EngineSubject(directory, dtype, threads)}
            if not options.alone:
                subjects["plain"] = PlainSubject(directory, dtype, threads)
            for name in options.cases.split(","):
                for case in cases(name):
                    line = measure(case, subjects, options.pairs)
                    print(json.dumps({"dtype": dtype, "threads": threads} | line), flush=True)


if __name__ == "__main__":
    main()
