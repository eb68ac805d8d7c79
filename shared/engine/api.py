"""The seam between the loop thread, which decides, and the engine thread, which computes. No torch here.

Once a step the loop thread makes a `StepPlan`; a `Runner` executes it in the engine thread and returns a
`StepResult`; the loop thread applies it. A plan's blocks stay pinned until its result is applied, so
nothing that a running step reads or writes can be given to another sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.kv.layout import KvLayout


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The engine's own copy of the wire's `Sampling` (same names and meaning), so that it needs no wire
    import."""

    max_pos: int
    seed: int
    choice: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    logprobs: int = -1
    grammar: str = ""


@dataclass(frozen=True, slots=True)
class Draw:
    """What to draw after an item's last new token: the id at absolute position `position`."""

    history: tuple[int, ...]  # all `position` ids before the drawn one; () unless `needs_history(params)`
    position: int
    prompt_len: int
    params: SamplingParams
    written: tuple[int, ...] = ()  # the ids after the prompt; () without a grammar
    allowed: bytes | None = None
    """What a grammar leaves: one bit an id, lowest bit first; None: every id."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One sequence's part of a step: compute the KV of `ids` at positions start .. start + len(ids) - 1."""

    seq: int  # the engine's own number of the sequence, never reused
    start: int
    ids: tuple[int, ...]
    blocks: tuple[int, ...]  # pool blocks of positions 0 .. start + len(ids) - 1, in order
    draw: Draw | None = None
    following: tuple[int, ...] = ()
    """Ids whose log-probability is wanted: each follows one of `ids`, from the first on."""
    best: int = 0
    """How many of the best ids are wanted beside each."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    items: tuple[WorkItem, ...]
    ended: tuple[int, ...] = ()  # sequences that will not come again: the runner drops what it keeps for them


@dataclass(frozen=True, slots=True)
class Drawn:
    """The drawn id; `logprob` and `top` from the raw scores where asked for."""

    id: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """In the order of the plan's items: the drawn id, None where nothing was to be drawn, or the fault of
    that item."""

    drawn: tuple[Drawn | Exception | None, ...]
    seconds: float
    scores: Mapping[int, tuple[Drawn, ...]] = field(default_factory=dict)
    """By the item's place in the plan: of its `following` ids."""


def step_failed(plan: StepPlan, error: Exception, seconds: float) -> StepResult:
    """The result of a step that raised as a whole: each of its items failed."""
    return StepResult((error,) * len(plan.items), seconds)


class Runner(Protocol):
    """Computes steps. All but `view`, `landed`, `layout` and `counters` runs in the engine thread only."""

    @property
    def layout(self) -> KvLayout: ...

    def warm_up(self) -> None:
        """Compile and touch everything a live request could need."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step.

        The KV of every block that is full is in the pool when this returns. A partial last block, which no
        other sequence reads, may stay in the runner until it fills or its sequence ends.
        """

    def view(self, block: int) -> memoryview:
        """The bytes of one pool block (writable): any thread; the ledger and pins say when it may be
        touched."""

    def landed(self, block: int) -> None:
        """The bytes of `view(block)` came from elsewhere and are whole: any thread, before a plan has it."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What to show in /metrics, by name; empty where there is nothing."""

    def close(self) -> None: ...


def needs_history(params: SamplingParams) -> bool:
    """Whether drawing under `params` reads earlier ids."""
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


def ids_of(history: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
    """The history to put into a `Draw`."""
    return tuple(history) if needs_history(params) else ()


def written_of(history: Sequence[int], prompt_len: int, params: SamplingParams) -> tuple[int, ...]:
    """The ids after the prompt to put into a `Draw`."""
    return tuple(history[prompt_len:]) if params.grammar else ()


class Gate(Protocol):
    """Prepares grammars aside: loop thread only, and never waits."""

    def ready(self, grammar: str) -> bool:
        """Whether ids can be drawn under it, or surely never; begins its preparation where it has not."""
