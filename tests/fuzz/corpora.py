"""Inputs on disk: one file each, named by what is in it, a folder for each target."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def read(target: str) -> list[bytes]:
    """The corpus of a target, in the order of its names."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*.bin"))]


def write(target: str, inputs: Iterable[bytes]) -> int:
    """Make these the corpus of a target; how many are new."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {f"{hashlib.sha256(data).hexdigest()[:16]}.bin": data for data in inputs}
    for path in folder.glob("*.bin"):
        if path.name not in wanted:
            path.unlink()
    fresh = [name for name in wanted if not (folder / name).exists()]
    for name in fresh:
        (folder / name).write_bytes(wanted[name])
    return len(fresh)
