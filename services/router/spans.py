"""A request that has ended, as spans of its trace: one for each stage of its time. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from services.router.observer import Ended
from services.router.request_trace import Stage
from shared.runtime.tracing import Span, is_recorded

NAMES = {
    Stage.QUEUE: "wait for prefill",
    Stage.PREFILL: "wait for the first token",
    Stage.LAN: "wait for KV at the relay",
    Stage.WAN: "wait for KV at main decode",
    Stage.RELAY: "relay answers",
    Stage.CUT: "cut",
    Stage.DECODE: "main decode answers",
}
GOOD = frozenset({"stop", "length"})


def spans_of(ended: Ended) -> Iterator[Span]:
    """Its stages one after another, then all of it as one choice of the client's request."""
    if not is_recorded(ended.parent):
        return
    trace = ended.trace
    name = {"pdd.rid": f"{ended.rid.incarnation:x}.{ended.rid.counter}"}
    times = [*trace.stages, (Stage.QUEUE, ended.at)]
    for (stage, start), (_, end) in pairwise(times):
        yield Span(NAMES[stage], ended.parent, start, end, name | {"pdd.stage": str(stage)})
    facts: dict[str, str | int | float | bool] = {
        **name,
        "pdd.outcome": ended.outcome,
        "pdd.pipeline": str(ended.facts["pipeline"]),
        "pdd.prompt_tokens": trace.prompt_tokens,
        "pdd.hit_tokens": trace.md_hit_tokens,
        "pdd.output_tokens": int(ended.facts["made"]),
        "pdd.cuts": trace.cuts,
        "pdd.kv_bytes_asked": trace.kv_blocks_sent * trace.block_bytes,
    }
    facts |= {f"pdd.node.{role}": node for role, node in trace.nodes.items()}
    error = "" if ended.outcome in GOOD else ended.outcome
    yield Span("choice", ended.parent, trace.submitted, ended.at, facts, error)
