"""What workers say about requests: each message is matched to its leg (node, term, ticket) and becomes an
event of it.

What matches nothing is late or wrong: it changes nothing, and a worker that still knows a request which
this router does not is told to release it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from services.router.cuts import Cuts
from services.router.endings import Endings
from services.router.failures import Failures
from services.router.legs import Leg, LegEvent, LegState
from services.router.lifecycle import Request
from services.router.log import Outcome, Run
from services.router.mesh import Mesh
from services.router.orders import Orders
from services.router.phases import Event, Phase
from services.router.request_trace import Stage
from services.router.requests import Tokens
from services.router.steering import Steering
from shared.errors import UnexpectedMessage
from shared.wire.messages import (
    Admitted,
    CaughtUp,
    Failed,
    Finished,
    Have,
    Missing,
    Refused,
    Release,
    Rid,
    Role,
    TokenLogprob,
    TokenRow,
    TokensOut,
)

REMEMBERED = 8192
"""Ended requests whose late messages are known to be late."""


class Inbound:
    """One method per message. `touched` is called with every request that a message may have changed."""

    def __init__(
        self,
        mesh: Mesh,
        requests: dict[Rid, Request],
        orders: Orders,
        cuts: Cuts,
        steering: Steering,
        failures: Failures,
        endings: Endings,
        touched: Callable[[float, Request], None],
    ) -> None:
        self._mesh = mesh
        self._requests = requests
        self._orders = orders
        self._cuts = cuts
        self._steering = steering
        self._failures = failures
        self._endings = endings
        self._touched = touched
        self._ended: OrderedDict[Hashable, None] = OrderedDict()

    def ended(self, rid: Rid) -> None:
        """Remember a request that is over."""
        self._remember(rid)

    def _remember(self, key: Hashable) -> None:
        self._ended[key] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    # --- decoders' answers ----------------------------------------------------------------------------------

    def admitted(self, now: float, node: str, message: Admitted) -> None:
        r, leg = self._leg(node, message.rid, message.term)
        if r is None or leg is None:
            return
        begun = message.alone and leg is r.main and leg.alone and r.owner is None
        whole = not message.ticket and (not message.alone or message.have == message.upto)
        if not self._step(leg, LegEvent.ADMITTED_WHOLE if whole else LegEvent.ADMITTED):
            return
        leg.ticket, leg.incarnation = message.ticket, message.incarnation
        leg.have, leg.expected = message.have, message.expected
        leg.upto, leg.last_hash = message.upto, message.last_hash
        if whole:
            self._orders.landed(leg)
        if leg.role is Role.MAIN:
            r.trace.mark("admitted", now)
            if r.md_hit is None:
                r.md_hit = min(message.have, r.prompt_blocks)
                r.trace.md_hit_tokens = r.md_hit * r.pool.block_tokens
            if whole:
                r.trace.mark("main_complete", now)
        if r.phase is Phase.CLOSING:
            self._endings.answered(now, r)
        elif begun:
            self._steering.begun(now, r, leg)
        self._advance(now, r)

    def refused(self, now: float, node: str, message: Refused) -> None:
        r, leg = self._leg(node, message.rid, message.term)
        if r is None or leg is None:
            return
        if leg.state is not LegState.ASKED:
            self._mesh.count("unexpected_messages_total")
            return
        if r.phase is Phase.CLOSING:
            self._orders.drop(leg)
            self._endings.expire(now, r)
            return
        self._failures.refused(now, r, leg, message)
        self._advance(now, r)

    def have(self, now: float, node: str, message: Have) -> None:
        """A receiver is complete, or its ticket is gone."""
        r = self._known(node, message.rid)
        leg = None if r is None else self._by_ticket(r, node, message.ticket)
        if r is None or leg is None:
            return
        if message.gone:
            if leg.state is LegState.FILLING:
                self._failures.ticket_failed(now, r, leg, "the receiver dropped it")
                self._after_trouble(now, r)
            return
        if not message.complete or not self._step(leg, LegEvent.COMPLETE):
            return
        self._orders.landed(leg)
        self._succeeded(node)
        r.trace.mark("main_complete" if leg.role is Role.MAIN else "relay_complete", now)
        self._advance(now, r)

    def caught_up(self, now: float, node: str, message: CaughtUp) -> None:
        r, leg = self._leg(node, message.rid, message.term)
        if r is None or leg is None or leg is not r.main:
            return
        self._mesh.fleet.progressed(now, node)
        self._cuts.caught_up(r, message.upto)
        self._advance(now, r)

    # --- ids ------------------------------------------------------------------------------------------------

    def tokens(self, now: float, node: str, message: TokensOut) -> None:
        """One step of a worker: rows of many requests."""
        self._mesh.fleet.progressed(now, node)
        self._succeeded(node)
        for row in message.rows:
            self._row(now, node, row)

    def _row(self, now: float, node: str, row: TokenRow) -> None:
        r, leg = self._leg(node, row.rid, row.term, drawing=True)
        if r is None or leg is None:
            return
        before = r.phase
        drew = leg.role is Role.PREFILL and leg.state is LegState.ASKED
        if drew:
            leg.step(LegEvent.DREW)
            self._orders.drew(leg)
            r.trace.waited(row.waited_ms / 1e3, now)
        if r.phase is Phase.CLOSING:
            return
        logprobs = row.logprobs if row.logprobs is None or len(row.logprobs) == len(row.ids) else None
        outcome = r.log.append(now, row.term, Run(row.start, row.ids, logprobs))
        if outcome.stale:
            self._mesh.count("stale_rows_total")
        if outcome.took_over:
            self._took_over(now, r)
        self._emit(now, r, outcome, row.prompt)
        if r.log.end is not None and not outcome.stale:
            self._endings.finish(now, r, r.log.end)
        elif outcome.fault is not None:
            self._failures.diverged(now, r, leg)
            self._advance(now, r)
        elif drew or r.phase is not before or self._cuts.waits(r):
            r.fresh = bool(outcome.runs)
            self._advance(now, r)
            r.fresh = False
        else:
            if r.phase is not Phase.MAIN:
                self._steering.fed(now, r)
            if r.log.gap_since is not None:
                self._touched(now, r)

    def _took_over(self, now: float, r: Request) -> None:
        """The relay's runs count from here on."""
        leg = r.legs[r.log.current]
        self._cuts.started(now, r, leg)

    def _emit(
        self, now: float, r: Request, outcome: Outcome, scores: tuple[TokenLogprob, ...] | None
    ) -> None:
        for term, run in outcome.runs:
            leg = r.legs[term]
            r.progressed()
            r.trace.appended(leg.role, leg.node, run.start, len(run.ids))
            if leg.role is Role.PREFILL:
                r.trace.mark("first_id", now)
                if r.phase is Phase.PREFILLING:
                    r.move(Event.FIRST)
            else:
                r.trace.mark("first_id", now)
                if leg.role is Role.MAIN:
                    r.trace.mark("main_first", now)
                    r.trace.enter(Stage.DECODE, now)
            self._mesh.emit(r.rid, Tokens(run.start, run.ids, run.logprobs, leg.role, scores))
            self._mesh.count(f"tokens_{leg.role}_total", len(run.ids))

    def finished(self, now: float, node: str, message: Finished) -> None:
        """The owner found the end; it counts once the log is as long."""
        r, leg = self._leg(node, message.rid, message.term, drawing=True)
        if r is None or leg is None or r.phase is Phase.CLOSING:
            return
        r.log.finish(now, message.term, message.at, message.reason)
        if r.log.end is not None:
            self._endings.finish(now, r, r.log.end)
        else:
            self._touched(now, r)

    # --- trouble --------------------------------------------------------------------------------------------

    def failed(self, now: float, node: str, message: Failed) -> None:
        r = self._known(node, message.rid)
        if r is None:
            return
        target = self._sent_by(r, node, message.ticket)
        if target is not None:
            self._failures.ticket_failed(now, r, target, message.reason)
        else:
            leg = r.legs.get(message.term)
            if leg is None or not leg.live or leg.node != node or message.term < leg.term:
                return
            if message.ticket not in (b"", leg.ticket):
                return  # of a transfer from there that is over: the receiver was faster, or was asked again
            if r.phase is not Phase.CLOSING:
                self._failures.failed(now, r, leg, message)
        self._after_trouble(now, r)

    def missing(self, now: float, node: str, message: Missing) -> None:
        r = self._known(node, message.rid)
        target = None if r is None else self._sent_by(r, node, message.ticket)
        if r is None or target is None:
            return
        if r.phase is not Phase.CLOSING:
            self._failures.missing(now, r, target, message)
        self._after_trouble(now, r)

    def lost(self, now: float, node: str) -> None:
        """A worker's session has ended: every leg there is out."""
        for r in [r for r in self._requests.values() if r.on(node)]:
            for leg in r.on(node):
                if r.phase is Phase.CLOSING:
                    self._orders.drop(leg)
                elif r.phase is not Phase.ENDED:
                    self._failures.lost(now, r, leg)
            self._after_trouble(now, r)

    def unlinked(self, now: float, node: str) -> None:
        """A worker has lost a KV session: transfers over it are over."""
        for r in list(self._requests.values()):
            if r.is_over():
                continue
            for leg in r.decoders():
                source = leg.source
                if source is None or leg.state is not LegState.FILLING or node not in (leg.node, source.node):
                    continue
                if not self._mesh.fleet.connected(leg.node, source.node):
                    self._failures.ticket_failed(now, r, leg, "the two workers lost their session")
            self._advance(now, r)

    def stalled(self, now: float, node: str) -> None:
        """A worker's engine makes no steps: what it was to draw is given to others."""
        for r in list(self._requests.values()):
            leg = r.drawing
            if leg is not None and leg.node == node and r.phase not in (Phase.CLOSING, Phase.ENDED):
                self._failures.stalled(now, r, leg)
                self._advance(now, r)

    def _after_trouble(self, now: float, r: Request) -> None:
        if r.phase is Phase.CLOSING:
            self._endings.expire(now, r)
        else:
            self._advance(now, r)

    # --- matching -------------------------------------------------------------------------------------------

    def _known(self, node: str, rid: Rid) -> Request | None:
        r = self._requests.get(rid)
        if r is None and rid not in self._ended and (node, rid) not in self._ended:
            self._remember((node, rid))
            self._mesh.count("strays_total")
            self._mesh.send(node, Release(rid, 1 << 62))
        return r

    def _leg(
        self, node: str, rid: Rid, term: int, *, drawing: bool = False
    ) -> tuple[Request | None, Leg | None]:
        """The live leg that a term names at a node; only its present term, unless it is about ids (the log
        checks).
        """
        r = self._known(node, rid)
        if r is None:
            return None, None
        leg = r.legs.get(term)
        if leg is None or leg.node != node:
            self._mesh.count("unexpected_messages_total")
            return r, None
        if not leg.live or (term != leg.term and not drawing):
            return r, None
        return r, leg

    def _by_ticket(self, r: Request, node: str, ticket: bytes) -> Leg | None:
        for leg in r.decoders():
            if leg.node == node and leg.ticket == ticket and leg.state is not LegState.ASKED:
                return leg
        return None

    def _sent_by(self, r: Request, node: str, ticket: bytes) -> Leg | None:
        """The decoder whose open ticket a sender names."""
        if not ticket:
            return None
        for leg in r.decoders():
            if leg.ticket == ticket and leg.source is not None and leg.source.node == node:
                return leg if leg.state is LegState.FILLING else None
        return None

    def _step(self, leg: Leg, event: LegEvent) -> bool:
        try:
            leg.step(event)
        except UnexpectedMessage:
            self._mesh.count("unexpected_messages_total")
            return False
        return True

    def _succeeded(self, node: str) -> None:
        worker = self._mesh.fleet.get(node)
        if worker is not None:
            worker.breaker.succeeded()

    def _advance(self, now: float, r: Request) -> None:
        self._steering.advance(now, r)
        self._touched(now, r)
