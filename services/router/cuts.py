"""Who draws next: main decode's cut (at once, or after catching up), a relay's start, and failover, which
is the same cut.

Rules return whether they changed something. Knows nothing of placement or transfers.
"""

from __future__ import annotations

from services.router.legs import Leg, LegEvent, LegState
from services.router.lifecycle import Request
from services.router.mesh import Mesh
from services.router.orders import Orders
from services.router.phases import Event, Phase
from services.router.request_trace import Stage
from shared.policy.handoff import CutMode, caught_up, cut_mode
from shared.policy.pipeline import Pipeline
from shared.wire.messages import Do, Rid, Role


class Cuts:
    """Makes owners. Every method may be called again at any time: what is done already is not done twice."""

    def __init__(self, mesh: Mesh, orders: Orders) -> None:
        self._mesh = mesh
        self._orders = orders
        self._moving: dict[Rid, Request] = {}  # those that come to a main decode from a relay

    def ended(self, rid: Rid) -> None:
        """A request is over."""
        self._moving.pop(rid, None)

    def silent(self, leg: Leg | None) -> bool:
        """Out, or on a worker that gives no sign of life."""
        return leg is None or not leg.live or self._mesh.fleet.is_suspect(leg.node)

    # --- main decode ----------------------------------------------------------------------------------------

    def cut(self, now: float, r: Request) -> bool:
        """Rule: main decode becomes the owner as soon as it can and should."""
        main = r.main
        if main is None or not self._may_own(r, main):
            return False
        alone = self._alone(r)
        if self.silent(r.owner) or alone or r.owner is r.displaced:
            self._make(now, r, main, CutMode.ONE_SHOT, "main decode alone" if alone else "nobody draws")
            return True
        if (r.singular and r.made <= r.predicted) or r.round_open:
            return False
        return self._from_relay(now, r, main)

    def _may_own(self, r: Request, main: Leg) -> bool:
        """Whether main decode can draw, and prefill's id is there or will not come."""
        if main is r.owner or self.silent(main):
            return False
        if main.state is not LegState.READY and not (self._alone(r) and main.state is LegState.FILLING):
            return False
        return r.phase is not Phase.PREFILLING or self._alone(r) or self.silent(r.prefill)

    def _alone(self, r: Request) -> bool:
        return r.settled and r.pipeline is Pipeline.MD

    def _from_relay(self, now: float, r: Request, main: Leg) -> bool:
        """A relay that draws is left right after an id of it: what the client waits at the seam begins then,
        and the id that the relay is drawing meanwhile is not thrown away.
        """
        if r.cut_due:
            if r.fresh:
                self._make(now, r, main, CutMode.CATCH_UP, "caught up")
            return r.fresh
        if r.rounds == 0:
            backlog = len(r.log) - main.upto * r.pool.block_tokens
            relay, worker = (
                self._mesh.fleet.get(r.owner.node if r.owner else ""),
                self._mesh.fleet.get(main.node),
            )
            if relay is None or worker is None:
                return False
            choice = cut_mode(
                self._mesh.policy,
                backlog,
                relay.owner_load(),
                worker.prefill_rate(),
                1.0 / relay.step_seconds(),
            )
            one_shot = choice.mode is CutMode.ONE_SHOT
            if (one_shot and not r.fresh) or (choice.patient and not self._has_place(main)):
                return False
            self._moving[r.rid] = r
            if one_shot:
                self._make(now, r, main, choice.mode, choice.reason)
                return True
            r.trace.cut_reason = choice.reason
        self._round(r, main)
        return True

    def _has_place(self, main: Leg) -> bool:
        """Whether few enough requests are being handed to this main decode: their extends share its steps, so
        that each further one makes all of them wait.
        """
        self._moving = {rid: r for rid, r in self._moving.items() if _moves(r)}
        here = sum(r.main is not None and r.main.node == main.node for r in self._moving.values())
        return here < self._mesh.policy.cuts_at_once

    def waits(self, r: Request) -> bool:
        """Whether main decode is to draw, and waits for the relay's next id or for its turn."""
        if r.phase is Phase.CATCHING_UP:
            return r.cut_due
        main = r.main
        return (
            r.phase is Phase.RELAYING
            and main is not None
            and main.state is LegState.READY
            and not (r.singular and r.made <= r.predicted)
        )

    def _round(self, r: Request, main: Leg) -> None:
        """Main decode extends over all that the log has now, while the relay goes on."""
        r.round_open = True
        r.move(Event.ROUND)
        self._orders.feed(r, main, Do.EXTEND, main.term)

    def caught_up(self, r: Request, upto: int) -> None:
        """Main decode has extended over `upto` ids of the log."""
        if not r.round_open or upto < r.log.prompt_len:
            return
        r.round_open = False
        r.rounds += 1
        r.cut_due = caught_up(self._mesh.policy, len(r.log) - upto, r.rounds)

    def _make(self, now: float, r: Request, main: Leg, mode: CutMode, reason: str) -> None:
        known = main.have if main.state is LegState.FILLING else main.upto
        backlog = len(r.log) - known * r.pool.block_tokens
        self._orders.own(now, r, main)
        self._mesh.count(f"cuts_{mode}_total")
        self._made(now, r, main, reason)
        if r.trace.cut_mode is CutMode.NONE and r.made:
            r.trace.cut_mode, r.trace.cut_rounds, r.trace.cut_backlog = mode, r.rounds, backlog
            r.trace.cut_reason = r.trace.cut_reason or reason

    def begun(self, now: float, r: Request, main: Leg) -> None:
        """Main decode draws already, under the term of its Admit."""
        r.log.own(main.term)
        self._begin(now, main)
        self._made(now, r, main, "main decode alone, from its admission on")

    def _made(self, now: float, r: Request, main: Leg, reason: str) -> None:
        r.owner = main
        r.move(Event.CUT)
        r.trace.cuts += 1
        r.trace.mark("cut", now)
        r.trace.enter(Stage.CUT, now)
        r.trace.because(f"cut to {main.node}: {reason}")
        r.trace.nodes[str(Role.MAIN)] = main.node
        r.round_open = r.cut_due = False
        if r.singular:
            r.singular = False
            r.pipeline = Pipeline.P_MD if r.relay is None or not r.relay.owns else Pipeline.P_RLD_MD
        for leg in (r.displaced, r.relay):
            if leg is not None:
                self._orders.release(r, leg)
                r.detach(leg)

    # --- the relay ------------------------------------------------------------------------------------------

    def start_relay(self, now: float, r: Request) -> bool:
        """Rule: a complete relay draws where nobody else does, unless it is about to start by itself
        (First).
        """
        relay = r.relay
        if relay is None or relay.state is not LegState.READY or self.silent(relay):
            return False
        if not self.silent(r.owner):
            return False
        if self._starts_by_itself(now, r, relay):
            return False
        self._orders.own(now, r, relay)
        self.relayed(now, r, relay)
        return True

    def _starts_by_itself(self, now: float, r: Request, relay: Leg) -> bool:
        """Whether First has come, or may still come, to a complete relay."""
        prefill = r.prefill
        if prefill is not None and prefill.state is LegState.ASKED and not self.silent(prefill):
            return relay.armed or r.phase is Phase.PREFILLING
        if not relay.armed:
            return False
        if r.start_relay_at is None:
            r.start_relay_at = now + 2 * self._mesh.fleet.rtt(relay.node) + self._mesh.policy.gap_grace
        if now < r.start_relay_at:
            return True
        self._mesh.count("relay_firsts_missed_total")
        return False

    def relayed(self, now: float, r: Request, relay: Leg) -> None:
        """A relay has taken over: by its first run, or by Feed{own}."""
        r.start_relay_at = None
        r.owner = relay
        r.move(Event.RELAY)
        r.trace.mark("relay_start", now)
        r.trace.nodes[str(Role.RELAY)] = relay.node
        if r.displaced is not None:
            self._orders.release(r, r.displaced)
            r.detach(r.displaced)

    def started(self, now: float, r: Request, relay: Leg) -> None:
        """A relay's first run came under the term of its Admit."""
        self._begin(now, relay)
        self.relayed(now, r, relay)

    def _begin(self, now: float, leg: Leg) -> None:
        """A decoder draws that was not told to by a Feed."""
        leg.step(LegEvent.OWN)
        leg.owns = leg.term
        leg.armed = False
        self._orders.engaged(now, leg)


def _moves(r: Request) -> bool:
    """Whether a request is between a relay and its main decode, which has not shown an id yet."""
    return r.phase is Phase.CATCHING_UP or (r.phase is Phase.MAIN and "main_first" not in r.trace.marks)
