"""What a run of the engine's benchmarks was asked for, and its progress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.engine.native.library import Library


@dataclass(frozen=True, slots=True)
class Options:
    """`pairs`: interleaved runs of each subject. `peers`: kinds of `PeerSubject` with their interpreters.
    `library`: the engine's compiled code; None: torch computes."""

    directory: Path
    dtype: str
    threads: int
    pairs: int
    quick: bool
    full: bool
    out: Path
    library: Library | None
    peers: tuple[tuple[str, str], ...] = ()
