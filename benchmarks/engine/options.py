"""What a run of the engine's benchmarks was asked for, and its progress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """`pairs`: interleaved runs of each subject. `peers`: kinds of `PeerSubject` with their interpreters."""

    directory: Path
    dtype: str
    threads: int
    pairs: int
    quick: bool
    full: bool
    out: Path
    peers: tuple[tuple[str, str], ...] = ()
