"""The search: inputs that take new ways through the code are kept and changed again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.fuzz.edges import Edge, Edges
from tests.fuzz.mutations import mutate
from tests.fuzz.targets import ALLOWED, Target


@dataclass
class Finding:
    """An input that a target should have understood or refused, and what came out of it."""

    data: bytes
    error: BaseException


@dataclass
class Search:
    """One target, the inputs kept so far and the edges that they take together."""

    target: Target
    draw: random.Random
    kept: list[bytes] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tried: int = 0
    edges: set[Edge] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._follow = Edges(self.target.files)
        self._seen: set[str] = set()

    def begin(self, corpus: Iterable[bytes]) -> None:
        """Take the seeds and the corpus; those that add nothing are not kept."""
        for data in sorted({*self.target.seeds(), *corpus}, key=lambda each: (len(each), each)):
            self.attempt(data)

    def attempt(self, data: bytes) -> bool:
        """Run one input; whether it was kept."""
        self.tried += 1
        try:
            self._follow.of(lambda: self.target.run(data))
        except ALLOWED:
            pass
        except Exception as error:  # noqa: BLE001 - whatever else comes out is what is searched for
            name = f"{type(error).__name__} {error}"[:80]
            if name not in self._seen:
                self._seen.add(name)
                self.findings.append(Finding(data, error))
        new = self._follow.taken - self.edges
        self.edges |= new
        if new:
            self.kept.append(data)
        return bool(new)

    def run(self, seconds: float, clock: Callable[[], float] = time.monotonic, most: int = 0) -> None:
        """Search for so long, or `most` inputs. Late finds are changed more often than early ones."""
        ends = clock() + seconds
        while clock() < ends and not (most and self.tried >= most):
            at = max(self.draw.randrange(len(self.kept) or 1), self.draw.randrange(len(self.kept) or 1))
            base = self.kept[at] if self.kept else b""
            self.attempt(mutate(base, self.kept, self.draw))
