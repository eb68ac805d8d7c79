"""What happened to one request, for its canonical log event and for X-PDD-Trace. Records; decides nothing."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from shared.policy.handoff import CutMode
from shared.wire.messages import Role

MOST_REASONS = 32
MOST_STAGES = 64


class Stage(enum.StrEnum):
    """What a request's time goes into, as its client feels it: one stage at any moment."""

    QUEUE = "queue"  # looks for a road, waits for room, or waits its turn at prefill
    PREFILL = "prefill"
    LAN = "lan"  # ids are there, nobody draws: a relay waits for its KV
    WAN = "wan"  # the same for main decode
    RELAY = "relay"  # a relay draws
    CUT = "cut"  # main decode is the owner and computes what it lacks
    DECODE = "decode"  # main decode draws


@dataclass(slots=True)
class Segment:
    """Ids [start, end) were drawn by one owner."""

    owner: Role
    node: str
    start: int
    end: int


@dataclass(slots=True)
class Trace:
    """Times are kept in the core's clock and shown in milliseconds since submit."""

    submitted: float
    marks: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    candidates: list[dict[str, Any]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)
    pipeline: str = ""
    prompt_tokens: int = 0
    md_hit_tokens: int = 0
    kv_blocks_sent: int = 0  # asked for by Attach to main decode
    kv_bytes_full: int = 0  # of the prompt's full blocks
    block_bytes: int = 0
    cut_mode: CutMode = CutMode.NONE
    cut_rounds: int = 0
    cut_backlog: int = 0
    cut_reason: str = ""
    cuts: int = 0
    handoff_bytes: int = 0
    feeds: int = 0
    stages: list[tuple[Stage, float]] = field(default_factory=list)  # each with the time of its beginning

    def enter(self, stage: Stage, now: float) -> None:
        """The request's time goes into this stage from now on; the first changes of very many are kept."""
        stages = self.stages
        if len(stages) < MOST_STAGES and (not stages or stages[-1][0] is not stage):
            stages.append((stage, now))

    def enter_wait(self, now: float, *, relay: bool) -> None:
        """Nobody draws until KV has come: to a relay, where there is one, or to main decode."""
        stage = Stage.LAN if relay else Stage.WAN
        if self.stages and self.stages[-1][0] in (Stage.LAN, Stage.WAN):
            self.stages[-1] = (stage, self.stages[-1][1])  # the relay has come, or gone, meanwhile
        else:
            self.enter(stage, now)

    def waited(self, seconds: float, now: float) -> None:
        """Prefill has drawn its id; so long it had waited before it began to compute."""
        if self.stages and self.stages[-1][0] is Stage.PREFILL:
            self.stages[-1] = (Stage.PREFILL, min(now, self.stages[-1][1] + seconds))

    def mark(self, name: str, now: float) -> None:
        """Keep the first time that something happened."""
        self.marks.setdefault(name, now)

    def because(self, reason: str) -> None:
        """Keep a reason, the first ones of very many."""
        if len(self.reasons) < MOST_REASONS:
            self.reasons.append(reason)

    def appended(self, owner: Role, node: str, start: int, count: int) -> None:
        """Ids of an owner were appended to the log."""
        last = self.segments[-1] if self.segments else None
        if last is not None and last.owner is owner and last.node == node and last.end == start:
            last.end += count
        else:
            self.segments.append(Segment(owner, node, start, start + count))

    def by_owner(self) -> dict[str, int]:
        """Ids drawn by each role."""
        counts: dict[str, int] = {}
        for part in self.segments:
            counts[str(part.owner)] = counts.get(str(part.owner), 0) + part.end - part.start
        return counts

    def show(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "pipeline": self.pipeline,
            "nodes": dict(self.nodes),
            "prompt_tokens": self.prompt_tokens,
            "md_hit_tokens": self.md_hit_tokens,
            "kv_bytes_full": self.kv_bytes_full,
            "kv_bytes_asked": self.kv_blocks_sent * self.block_bytes,
            "tokens_by_owner": self.by_owner(),
            "eager_tokens": self.by_owner().get(str(Role.RELAY), 0),
            "cut": {
                "mode": str(self.cut_mode),
                "rounds": self.cut_rounds,
                "backlog": self.cut_backlog,
                "reason": self.cut_reason,
                "count": self.cuts,
            },
            "handoff_bytes": self.handoff_bytes,
            "feeds": self.feeds,
            "reasons": list(self.reasons),
            "candidates": list(self.candidates),
            "segments": [
                {"owner": str(part.owner), "node": part.node, "start": part.start, "end": part.end}
                for part in self.segments
            ],
            "stages": [{"stage": str(stage), "at_ms": self._ms(at)} for stage, at in self.stages],
            "times_ms": {name: self._ms(at) for name, at in self.marks.items()},
        }

    def _ms(self, at: float) -> float:
        """Milliseconds since submit."""
        return round(1000 * (at - self.submitted), 3)
