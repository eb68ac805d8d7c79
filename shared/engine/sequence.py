"""One sequence: the ids known, how far their KV is computed, and what it still wants from the engine.

Knows its own blocks but neither pool nor other sequences.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass

from shared.engine.api import SamplingParams
from shared.errors import InvariantBroken


class Goal(enum.Enum):
    """What a sequence is computed for."""

    PREFILL = "prefill"  # compute everything, draw exactly one id, then rest with the blocks pinned
    EXTEND = "extend"  # compute all but the last known id, draw nothing
    OWN = "own"  # compute everything and draw until finished


class Phase(enum.Enum):
    RESTING = "resting"  # nothing to do: caught up, drawn, or paused
    WAITING = "waiting"  # has work, waits for one of the places
    RUNNING = "running"  # takes part in steps
    DONE = "done"  # finished or failed: never planned again
    GONE = "gone"  # ended: its blocks are given back


class Turn(enum.Enum):
    """What happens to a sequence's phase."""

    WORK = "work"
    START = "start"
    REST = "rest"
    FINISH = "finish"
    END = "end"


_TABLE: dict[tuple[Phase, Turn], Phase] = {
    (Phase.RESTING, Turn.WORK): Phase.WAITING,
    (Phase.RESTING, Turn.FINISH): Phase.DONE,
    (Phase.RESTING, Turn.END): Phase.GONE,
    (Phase.WAITING, Turn.START): Phase.RUNNING,
    (Phase.WAITING, Turn.REST): Phase.RESTING,
    (Phase.WAITING, Turn.FINISH): Phase.DONE,
    (Phase.WAITING, Turn.END): Phase.GONE,
    (Phase.RUNNING, Turn.REST): Phase.RESTING,
    (Phase.RUNNING, Turn.FINISH): Phase.DONE,
    (Phase.RUNNING, Turn.END): Phase.GONE,
    (Phase.DONE, Turn.END): Phase.GONE,
}


@dataclass(slots=True)
class SequenceSpec:
    """What a sequence starts from."""

    ids: list[int]
    """All ids known now, prompt first; at least one."""
    prompt_len: int
    """How many of the ids are the prompt."""
    params: SamplingParams
    root: bytes
    """Chain root: parent of the first block's hash."""
    hashes: list[bytes]
    """Hashes of leading full blocks, as far as they are known; at least as many as `blocks`."""
    blocks: list[int]
    """Leading published blocks, pinned by the caller: the pins pass to the engine."""
    goal: Goal
    priority: int = 0
    """Lower is more urgent."""
    promise: Hashable | None = None
    """Growth takes blocks under this key of the pool first."""
    publish: bool = True
    """Whether full blocks are published."""
    scores: int = -1
    """How many best ids are wanted beside each id of the prompt, with log-probabilities; -1: none are. Only
    for one that starts without blocks."""


class Sequence:
    """Mutable state of one sequence in the engine. Positions are absolute, prompt first."""

    def __init__(self, number: int, spec: SequenceSpec, block_tokens: int, now: float) -> None:
        self.number = number
        self.ids = list(spec.ids)
        self.prompt_len = spec.prompt_len
        self.params = spec.params
        self.root = spec.root
        self.hashes = list(spec.hashes)
        self.goal = spec.goal
        self.priority = spec.priority
        self.promise = spec.promise
        self.publish = spec.publish
        self.scores = spec.scores
        self.phase = Phase.RESTING
        self.added: float | None = now  # in the caller's seconds; None once it has had a place
        self.begun: float | None = None  # when its first step was planned
        self.paused = False
        self.flying = False  # part of the running step
        self.ending = False  # ended while flying: released when the step is applied
        self.drawn = False  # the one id of PREFILL is there
        self.computed = len(spec.blocks) * block_tokens  # tokens with KV
        self.ready = len(spec.blocks)  # leading full blocks that the worker knows of
        self.extended = 0  # length last told by Extended
        self.starved_at: tuple[int, int] | None = None  # what `Tables.changes` was when growth failed
        self._blocks = list(spec.blocks)
        self._table: tuple[int, ...] | None = None

    # --- work -----------------------------------------------------------------------------------------------

    @property
    def draws(self) -> bool:
        """Whether the next id is to be drawn once all known ids are computed."""
        return self.goal is Goal.OWN or (self.goal is Goal.PREFILL and not self.drawn)

    @property
    def remaining(self) -> int:
        """New tokens to compute; 0 for a drawing sequence: its last block has to come again."""
        if self.draws:
            return len(self.ids) - self.computed
        if self.goal is Goal.EXTEND:
            return max(len(self.ids) - 1 - self.computed, 0)
        return 0

    @property
    def wants(self) -> bool:
        """Whether the next step should hold a part of this sequence."""
        if self.paused or self.ending or self.phase in (Phase.DONE, Phase.GONE):
            return False
        return self.draws or self.remaining > 0

    @property
    def decodes(self) -> bool:
        """One new token, then a draw, as in every step of an owner."""
        return self.goal is Goal.OWN and self.remaining == 1

    def turn(self, event: Turn) -> None:
        """Move to the next phase; a pair that is not in the table is a bug."""
        after = _TABLE.get((self.phase, event))
        if after is None:
            raise InvariantBroken(f"sequence {self.number} is {self.phase.value} and cannot {event.value}")
        self.phase = after

    # --- blocks ---------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> list[int]:
        """A copy of the block table."""
        return list(self._blocks)

    def block(self, index: int) -> int:
        return self._blocks[index]

    @property
    def table(self) -> tuple[int, ...]:
        """The block table as the runner gets it."""
        if self._table is None:
            self._table = tuple(self._blocks)
        return self._table

    @property
    def size(self) -> int:
        """Blocks in the table."""
        return len(self._blocks)

    def grow(self, blocks: list[int]) -> None:
        self._blocks.extend(blocks)
        self._table = None

    def cut_block(self) -> int:
        """Remove the last block from the table and return it: the caller gives its pin back."""
        self._table = None
        return self._blocks.pop()

    def clear(self) -> list[int]:
        """Empty the table; the pins of the returned blocks are the caller's."""
        blocks, self._blocks, self._table = self._blocks, [], None
        return blocks
