"""What a run of the mesh's benchmarks is told: how much, from which seeds, with which trace, and where to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Result

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


Case = Callable[[Options], list[Result]]
