"""Makes the picture of a router that an operator is shown, and keeps the requests that have ended lately.

Reads the core and changes nothing. Rows are bounded, however many requests there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from services.router.lifecycle import Request
from services.router.lines import Line
from services.router.mesh import Mesh
from services.router.picture import Crossing, LineRow, Picture, RequestRow, Requests, SenderRow, WorkerRow
from services.router.request_trace import Trace
from services.router.worker import Worker
from shared.policy.pipeline import Pipeline
from shared.wire.messages import Rid, Role, TransferClass

MOST_ROWS = 100
"""Running requests that are shown, the oldest ones."""

ENDED_SHOWN = 32
"""Requests that are shown after their end."""

ENDED_KEPT = 4096
"""Ended requests that wait to be recorded; older ones are dropped."""

CLASSES = tuple(cls.name.lower() for cls in TransferClass)
_ORDER = (Role.PREFILL, Role.RELAY, Role.MAIN)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is kept of a request that is over: no ids."""

    rid: Rid
    parent: str
    """Its trace context."""
    trace: Trace
    at: float
    outcome: str
    facts: Mapping[str, Any]


class Observer:
    """One router's; told of every end."""

    def __init__(self, node: str, datacenter: str, mesh: Mesh, requests: Mapping[Rid, Request]) -> None:
        self._node = node
        self._datacenter = datacenter
        self._mesh = mesh
        self._requests = requests
        self._last: deque[Ended] = deque(maxlen=ENDED_SHOWN)
        self._fresh: deque[Ended] = deque(maxlen=ENDED_KEPT)
        self.recording = False
        """Whether somebody takes every ended request."""

    def ended(self, now: float, r: Request) -> None:
        """A request is over."""
        one = Ended(r.rid, r.spec.trace, r.trace, now, r.outcome, _facts(r))
        self._last.appendleft(one)
        if self.recording:
            self._fresh.append(one)

    def take_ended(self) -> list[Ended]:
        """All that have ended since the last call, while `recording`."""
        taken = list(self._fresh)
        self._fresh.clear()
        return taken

    # --- numbers --------------------------------------------------------------------------------------------

    def oldest_wait(self, now: float) -> float:
        """Seconds that the request which waits longest for room has been waiting."""
        return max((now - self._waits_since(r) for r in self._requests.values() if r.waiting), default=0.0)

    def _waits_since(self, r: Request) -> float:
        return r.trace.submitted if r.waits_until is None else r.waits_until - self._mesh.policy.queue_wait

    # --- the picture ----------------------------------------------------------------------------------------

    def look(self, now: float, readiness: Mapping[str, Any], *, draining: bool, refused: int) -> Picture:
        """All of it, now."""
        counters = self._mesh.counters
        return Picture(
            node=self._node,
            datacenter=self._datacenter,
            at_ms=_ms(now),
            draining=draining,
            ready=bool(readiness["ready"]),
            reasons=[*readiness["reasons"], *_why_not(readiness)],
            requests=self._all_requests(now),
            lines=self._lines(),
            workers=self._workers(now),
            pipelines={str(one): int(counters.get(f"pipeline_{one}_total", 0)) for one in Pipeline},
            tokens={str(one): int(counters.get(f"tokens_{one}_total", 0)) for one in _ORDER},
            cuts=_between(counters, "cuts_", "_total"),
            finished=int(counters.get("requests_finished_total", 0)),
            broken=int(counters.get("requests_broken_total", 0)),
            cancelled=int(counters.get("requests_cancelled_total", 0)),
            refused=refused + int(counters.get("requests_refused_total", 0)),
        )

    def _all_requests(self, now: float) -> Requests:
        live = self._requests
        return Requests(
            live=len(live),
            waiting=sum(r.waiting for r in live.values()),
            oldest_wait_ms=_ms(self.oldest_wait(now)),
            rows=[self._running(now, r) for r in islice(live.values(), MOST_ROWS)],
            ended=[
                _row(one.rid, one.outcome, one.at, one.trace, one.facts, ago=now - one.at)
                for one in self._last
            ],
        )

    def _running(self, now: float, r: Request) -> RequestRow:
        return _row(r.rid, str(r.phase), now, r.trace, _facts(r))

    # --- lines ----------------------------------------------------------------------------------------------

    def _lines(self) -> list[LineRow]:
        """Every line of the mesh file, then the LANs that somebody has sent over."""
        workers = self._mesh.fleet.all()
        lines = self._mesh.fleet.lines.all()
        names = {line.name for line in lines}
        sent = {name for one in workers if one.report is not None for name in one.report.sent_bytes}
        lines += [Line(name, (name, name)) for name in sorted(sent - names)]
        return [self._line(line, workers) for line in lines]

    def _line(self, line: Line, workers: list[Worker]) -> LineRow:
        senders: list[SenderRow] = []
        classes, oldest = [0] * len(CLASSES), 0
        for one in workers:
            report, name = one.report, line.name
            if report is None or not (name in report.sent_bytes or name in report.unsent_bytes):
                continue
            for at, unsent in enumerate(report.unsent_by_class.get(name, ())[: len(classes)]):
                classes[at] += unsent
            oldest = max(oldest, report.oldest_age_ms.get(name, 0))
            sender = SenderRow(
                node=one.node,
                unsent=report.unsent_bytes.get(name, 0),
                estimate=report.line_rate.get(name, 0.0),
                sent=report.sent_bytes.get(name, 0),
            )
            senders.append(sender)
        return LineRow(
            name=line.name,
            between=line.between,
            cap=line.rate,
            estimate=self._mesh.fleet.lines.rate(line),
            rtt_ms=_ms(self._rtt(line, workers)),
            outstanding=self._mesh.fleet.outstanding(line),
            classes=dict(zip(CLASSES, classes, strict=True)),
            oldest_ms=oldest,
            sent=sum(sender.sent for sender in senders),
            senders=senders,
        )

    def _rtt(self, line: Line, workers: list[Worker]) -> float:
        """As measured from here where this router stands at one end, else the mesh file's guess."""
        ends = set(line.between)
        if self._datacenter in ends:
            far = (ends - {self._datacenter}) or ends
            measured = [self._mesh.fleet.rtt(one.node) for one in workers if one.peer.datacenter in far]
            if measured:
                return min(measured)
        return line.rtt

    # --- workers --------------------------------------------------------------------------------------------

    def _workers(self, now: float) -> list[WorkerRow]:
        """By role and name."""
        workers = sorted(self._mesh.fleet.all(), key=lambda one: (_ORDER.index(one.role), one.node))
        return [self._worker(now, one) for one in workers]

    def _worker(self, now: float, one: Worker) -> WorkerRow:
        announce, report = one.announce, one.report
        counters = {} if report is None else report.counters
        return WorkerRow(
            node=one.node,
            role=str(one.role),
            datacenter=one.peer.datacenter,
            model="" if announce is None else announce.model,
            state=one.why_not(now) or "ok",
            running=0 if report is None else report.running,
            queued=0 if report is None else report.queued,
            queued_tokens=one.queued_tokens(),
            most=0 if announce is None else announce.max_running,
            blocks=0 if announce is None else announce.pool_blocks,
            free=one.free_blocks(),
            promised=0 if report is None else report.promised_blocks,
            pinned=0 if report is None else report.pinned_blocks,
            hit_tokens=int(counters.get("prompt_tokens_cached", 0)),
            looked_up_tokens=int(counters.get("prompt_tokens", 0)),
            rtt_ms=_ms(self._mesh.fleet.rtt(one.node)),
            step_ms=0.0 if report is None else round(report.decode_step_ms, 2),
            prefill_rate=0.0 if report is None else round(report.prefill_rate, 1),
        )


def _facts(r: Request) -> dict[str, Any]:
    """What a row needs beside the trace."""
    return {
        "tenant": r.spec.tenant,
        "model": r.spec.model,
        "pipeline": str(r.pipeline or r.planned) if r.settled or r.pipeline else "",
        "made": r.made,
        "most": r.log.max_pos - r.log.prompt_len,
        "note": r.blocked_why if r.waiting or r.blocked_at is not None else "",
    }


def _row(
    rid: Rid, state: str, now: float, trace: Trace, facts: Mapping[str, Any], *, ago: float = 0.0
) -> RequestRow:
    since = trace.submitted
    return RequestRow(
        id=f"{rid.incarnation:x}.{rid.counter}",
        state=state,
        prompt_tokens=trace.prompt_tokens,
        hit_tokens=min(trace.md_hit_tokens, trace.prompt_tokens),
        age_ms=_ms(now - since),
        ago_ms=_ms(ago),
        stages=[(str(stage), _ms(at - since)) for stage, at in trace.stages],
        crossings=_crossings(trace),
        nodes=dict(trace.nodes),
        tokens=trace.by_owner(),
        tenant=facts["tenant"],
        model=facts["model"],
        pipeline=facts["pipeline"],
        made=facts["made"],
        most=facts["most"],
        note=facts["note"] or (trace.reasons[-1] if trace.reasons else ""),
    )


def _crossings(trace: Trace) -> list[Crossing]:
    """Transfers of KV, from the word to send until the receiver had all."""
    found: list[Crossing] = []
    sizes = {"relay": 0, "main": trace.kv_blocks_sent * trace.block_bytes}
    for kind, leg in (("lan", "relay"), ("wan", "main")):
        start, end = trace.marks.get(f"{leg}_attached"), trace.marks.get(f"{leg}_complete")
        if start is not None:
            end_ms = None if end is None else _ms(end - trace.submitted)
            found.append(Crossing(kind, _ms(start - trace.submitted), end_ms, sizes[leg]))
    return found


def _why_not(readiness: Mapping[str, Any]) -> list[str]:
    """Pipelines that are not possible, with reasons."""
    return [
        f"{name}: {state['reason']}"
        for pool in readiness["pools"]
        for name, state in pool["pipelines"].items()
        if not state["possible"]
    ]


def _between(counters: Mapping[str, float], before: str, after: str) -> dict[str, int]:
    """Counters by what stands between two texts in their names."""
    return {
        name[len(before) : -len(after)]: int(value)
        for name, value in sorted(counters.items())
        if name.startswith(before) and name.endswith(after)
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
