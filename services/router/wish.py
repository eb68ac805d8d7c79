"""What placement is asked and what it answers: a request as numbers, a plan with its reasons, or why there
is none.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.policy.pipeline import Pipeline


class Obstacle(enum.StrEnum):
    """Why there is no road, worst last: what the request can hope for decides what becomes of it."""

    FULL = "full"  # room may come
    SILENT = "silent"  # candidates are suspect
    LINE = "line"  # the line is too far behind
    TOO_LONG = "too_long"  # never fits
    NONE = "none"  # nobody is there


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to be placed, or placed anew: `tokens` is the log's length then."""

    tokens: int
    hashes: Sequence[bytes]  # of the full blocks that a decoder is to have; the rest it is fed as ids
    output: int  # ids to expect from here on
    growth: int  # output tokens that a decoder's admission reserves room for
    deadline: float  # seconds left
    local_allowed: bool = True
    relay_allowed: bool = True
    singular_allowed: bool = False
    patient: bool = False  # ids were shown already: waiting for the line is better than an error
    avoid: Mapping[str, Obstacle] = field(default_factory=dict)  # nodes that refused or failed this request
    prefill: str = ""  # where it is being prefilled already
    prefill_end: float = 0.0  # seconds until that has drawn, by the estimate made when it was asked
    relay: str = ""  # a relay that it has its place at already


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of the mesh as a whole, in seconds of whatever it keeps busy longest: all prefill
    workers together, or the line.
    """

    seconds: float = 0.0  # this request alone; 0.0 while no speed is known
    backlog: float = 0.0  # what is queued there before it


@dataclass(frozen=True, slots=True)
class Candidate:
    """One main decode with its best prefill, or one that was rejected (`reason` then says why)."""

    node: str
    role: str
    reason: str = ""
    obstacle: Obstacle | None = None
    pipeline: Pipeline | None = None
    prefill: str | None = None
    relay: str | None = None
    have: int = 0  # blocks of the prompt that main decode holds
    expected: int = 0
    t_main: float = 0.0
    t_relay: float | None = None
    t_prefill: float = 0.0
    load: int = 0
    cost: float = 0.0
    ample: bool = False  # its last report leaves no doubt that it will admit
    wait: float = 0.0  # seconds by which the line is too slow
    alone: int = 0  # of `MD`: lacking tokens up to which it begins at once

    def show(self) -> dict[str, Any]:
        """JSON-ready, for traces."""
        shown: dict[str, Any] = {"node": self.node, "role": self.role}
        if self.reason:
            shown["reason"] = self.reason
        if self.pipeline is not None:
            shown |= {
                "pipeline": str(self.pipeline),
                "prefill": self.prefill,
                "relay": self.relay,
                "have_blocks": self.have,
                "expected_blocks": self.expected,
                "t_prefill": round(self.t_prefill, 4),
                "t_main": round(self.t_main, 4),
                "t_relay": None if self.t_relay is None else round(self.t_relay, 4),
                "load": self.load,
                "cost": round(self.cost, 4),
            }
        return shown


@dataclass(frozen=True, slots=True)
class Plan:
    """The road taken and those rejected."""

    chosen: Candidate
    pipeline: Pipeline
    reason: str
    rejected: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class NoRoad:
    """No road now. `obstacle` is the mildest among the candidates."""

    obstacle: Obstacle
    rejected: tuple[Candidate, ...] = ()
    wait: float = 0.0
    details: str = field(default="")
    demand: Demand = field(default_factory=Demand)

    def why(self) -> str:
        """One line that names each candidate's reason."""
        parts = [f"{one.node}: {one.reason}" for one in self.rejected[:8]]
        return "; ".join(parts) or self.details
