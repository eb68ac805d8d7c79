"""What a run of the mesh's benchmarks is told: how much, from which seeds, with which trace, and where to."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.report import Result

Job = TypeVar("Job")
Found = TypeVar("Found")

DEFAULT_TRACE = Path("../shared/traces/agentic_sessions.jsonl.gz")


@dataclass(frozen=True, slots=True)
class Options:
    """`quick`: seconds, to see that it runs; `full`: the whole matrix; neither: what the musts are judged
    by."""

    quick: bool = False
    full: bool = False
    out: Path = Path("build/mesh")  # where PNG files go
    seeds: tuple[int, ...] = ()  # () for as many as the size wants
    trace: Path = DEFAULT_TRACE
    processes: int = 2

    def pick(self, quick: int, usual: int, full: int) -> int:
        """One of three sizes."""
        return quick if self.quick else full if self.full else usual

    def chosen_seeds(self, quick: int = 1, usual: int = 3, full: int = 5) -> tuple[int, ...]:
        """The seeds that were asked for, or the first so many."""
        return self.seeds or tuple(range(1, 1 + self.pick(quick, usual, full)))

    def spread(self, run: Callable[[Job], Found], jobs: Sequence[Job]) -> list[Found]:
        """What `run`, a function of a module, finds for each job, in as many processes as there may be."""
        if self.processes == 1 or len(jobs) == 1:
            return [run(job) for job in jobs]
        with multiprocessing.get_context("spawn").Pool(self.processes) as pool:
            return pool.map(run, jobs, chunksize=1)


Case = Callable[[Options], list[Result]]
