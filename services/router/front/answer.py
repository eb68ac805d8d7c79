"""What both endpoints' answers share: names, usage, the trace object, and the text gathered for a whole
answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET, Struct, UnsetType

from services.router.front.choice import Delta, Drawn
from services.router.front.dialect import Chunk
from services.router.front.generation import Generation
from services.router.front.reading.pieces import Piece, Said, Thought, ToolCall, merged
from services.router.front.replies import CompletionDetails, PromptDetails, Usage
from shared.errors import MeshError


@dataclass(frozen=True, slots=True)
class Head:
    """Names of one answer."""

    id: str
    created: int
    model: str
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class Shape:
    """What the client asked to see."""

    logprobs: int = -1
    """-1: none; else how many of the best beside the drawn id."""
    include_usage: bool = False
    token_ids: bool = False
    trace: bool = False
    running_usage: bool = False
    """Every chunk of a stream counts what was generated up to it."""


class Reply(Protocol):
    """Renders one endpoint's answers."""

    def chunks(self, deltas: Sequence[Delta]) -> Sequence[Chunk]:
        """Chunks of a stream for what has come."""

    def closing(self) -> Sequence[Chunk]:
        """Chunks after the last choice has ended."""

    def failing(self, error: MeshError) -> Sequence[Chunk]:
        """Chunks that end a stream with an error."""

    def whole(self, deltas: Sequence[Delta]) -> Struct:
        """The whole answer, of everything that came."""


@dataclass(slots=True)
class Gathered:
    """One choice's answer, put together."""

    index: int
    pieces: list[Piece] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    finish: str = ""
    stop: int | str | None = None

    @property
    def text(self) -> str:
        """Its words."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Said))

    @property
    def thought(self) -> str:
        """What the model thought before them."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Thought))

    @property
    def calls(self) -> list[ToolCall]:
        """The tools it calls."""
        return [piece for piece in self.pieces if isinstance(piece, ToolCall)]


def gather(deltas: Sequence[Delta], choices: int) -> list[Gathered]:
    """Deltas by choice, in the choices' order."""
    gathered = [Gathered(index) for index in range(choices)]
    for delta in deltas:
        one = gathered[delta.index]
        one.pieces += delta.pieces
        one.drawn += delta.drawn
        if delta.finish is not None:
            one.finish, one.stop = delta.finish.value, delta.stop
    for one in gathered:  # at once: text that grew piece by piece would be copied for each
        one.pieces = merged(one.pieces)
    return gathered


def usage(generation: Generation, n: int) -> Usage:
    """Counts of the whole request. A prompt with n choices counts once; so do its cached tokens (of choice
    0)."""
    firsts = range(0, len(generation.jobs), n)
    prompt = sum(len(generation.jobs[at].prompt.ids) for at in firsts)
    cached = sum(generation.choices[at].cached_tokens for at in firsts)
    completion = sum(len(choice.ids) for choice in generation.choices)
    counts = Usage(prompt, completion, prompt + completion, PromptDetails(cached))
    if any(job.reading.thinks for job in generation.jobs):
        counts.completion_tokens_details = CompletionDetails(thought_tokens(generation))
    return counts


def usage_so_far(generation: Generation, n: int, shape: Shape) -> Usage | UnsetType | None:
    """The `usage` of a chunk that is not the last one."""
    if shape.running_usage:
        return usage(generation, n)
    return None if shape.include_usage else UNSET


def thought_tokens(generation: Generation) -> int:
    """Generated ids of thoughts."""
    return sum(choice.thought_ids for choice in generation.choices)


def drawn_by(delta: Delta, shape: Shape) -> Mapping[str, Any] | UnsetType:
    """The `pdd` object of one chunk of a stream: who drew its ids."""
    return {"owner": str(delta.owner)} if shape.trace and delta.owner is not None else UNSET


def trace(generation: Generation, shape: Shape) -> Mapping[str, Any] | UnsetType:
    """The `pdd` object: the core's trace of the request, with what the router saw of it in milliseconds."""
    if not shape.trace:
        return UNSET
    times = generation.times

    def since(moment: float) -> float | None:
        return round((moment - times.started) * 1000, 3) if moment else None

    seen = {
        "ttft_ms": since(times.first),
        "ttst_ms": since(times.second),
        "stall_ms": round(times.stall * 1000, 3),
    }
    each = [
        {
            **choice.trace,
            "splice": job.prompt.splice,
            "spliced_ids": job.prompt.spliced_ids,
        }
        for choice, job in zip(generation.choices, generation.jobs, strict=True)
    ]
    return each[0] | {"seen": seen} if len(each) == 1 else {"choices": each, "seen": seen}
