"""What the engine tells the worker after a step. Sequences are named by the engine's own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sampled:
    """An id was drawn: it is ids[position] of the sequence. `logprob` is None where none was asked for."""

    seq: int
    position: int
    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of the next ids of the prompt, and the best ids beside each. They come in order."""

    seq: int
    scores: tuple[tuple[float, tuple[tuple[int, float], ...]], ...]


@dataclass(frozen=True, slots=True)
class Extended:
    """An EXTEND sequence has the KV of all but the last of its first `upto` ids, all it knew."""

    seq: int
    upto: int


@dataclass(frozen=True, slots=True)
class BlocksReady:
    """Blocks [first, end) of the table are full, hold KV, and are published where their hash was new.

    Each block of a sequence is named once, in order; those it was added with are not named.
    """

    seq: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The sequence has reached its end: `at` is its length, the stop id included. It keeps its blocks until
    `end`.
    """

    seq: int
    at: int
    reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Fault:
    """The sequence cannot go on; the engine can. It keeps its blocks until `end`."""

    seq: int
    reason: Literal["nan", "grammar", "internal"]
    detail: str


@dataclass(frozen=True, slots=True)
class Starved:
    """Growth found no block. Tried, and told, again whenever blocks came free or a sequence ended."""

    seq: int


EngineEvent = Sampled | Scored | Extended | BlocksReady | Finished | Fault | Starved
