"""What a request does next: rules over its present state, tried in order until none has anything to do.

Every event only changes the record; then the rules look at it afresh. So the order in which answers, losses
and recoveries arrive does not matter, and a request that any rule can move is never stuck.
"""

from __future__ import annotations

from collections.abc import Callable

from services.router.cuts import Cuts
from services.router.index import Match
from services.router.legs import Leg, LegState
from services.router.lifecycle import Request
from services.router.mesh import Mesh
from services.router.orders import Orders
from services.router.phases import Phase
from services.router.sources import Sources
from services.router.wish import Candidate, NoRoad, Obstacle, Plan
from shared.errors import InvariantBroken
from shared.policy.pipeline import Pipeline
from shared.wire.messages import Do, Role

Rule = Callable[[float, Request], bool]

MOST_STEPS = 64
HOLD_RUN = 32
"""Ids that gather for a decoder which still lacks blocks: it cannot use them yet, and a cut brings
the rest.
"""
RETRY = 0.25
"""Seconds until a request without a road looks again; a worker that joins or recovers makes it look at
once.
"""


class Steering:
    """The rules of placement; those of transfers and owners are in Sources and Cuts."""

    def __init__(
        self,
        mesh: Mesh,
        orders: Orders,
        cuts: Cuts,
        sources: Sources,
        no_road: Callable[[float, Request, NoRoad], None],
    ) -> None:
        self._mesh = mesh
        self._orders = orders
        self._cuts = cuts
        self._sources = sources
        self._no_road = no_road
        self._rules: tuple[Rule, ...] = (
            lambda _, r: self._restore(r),
            self._replace_relay,
            self._replace_prefill,
            self._replace_main,
            self._seek_main,
            self._settle,
            cuts.cut,
            cuts.start_relay,
            sources.arm,
            sources.supply,
            sources.go_alone,
            sources.relay,
        )

    def advance(self, now: float, r: Request) -> None:
        """Do all that can be done now."""
        for _ in range(MOST_STEPS):
            if r.is_over():
                return
            if not any(rule(now, r) for rule in self._rules):
                break
        else:
            raise InvariantBroken(f"request {r.rid} does not come to rest in phase {r.phase}")
        if r.is_over():
            return
        r.staged(now)
        self.fed(now, r)
        self._sources.trim(r)
        self._blocked(now, r)

    def fed(self, now: float, r: Request) -> None:
        """Standbys know the log; classes follow what the client sees."""
        for leg in r.decoders():
            if leg is r.owner or leg.state not in (LegState.FILLING, LegState.READY):
                continue
            end = len(r.log)
            if leg.armed:
                end = min(end, leg.base if r.prefill is None else max(leg.base, r.prefill.base))
            # A relay has to know how far the log is before its blocks and prefill's First can start it.
            waits = leg.role is Role.MAIN and leg.state is LegState.FILLING and end - leg.fed < HOLD_RUN
            if leg.fed < end and not waits:
                self._orders.feed(r, leg, Do.HOLD, leg.term, end)
        if r.singular and r.made > r.predicted:
            r.singular = False
            r.pipeline = Pipeline.P_RLD_MD
            r.trace.because(f"answer outgrew the {r.predicted} ids predicted")
            self._mesh.count("singular_outgrown_total")
        self._sources.reclass(now, r)

    # --- silent workers -------------------------------------------------------------------------------------

    def _restore(self, r: Request) -> bool:
        """A silent owner gives signs of life again before its successor is ready."""
        old = r.displaced
        if old is None or not old.live or old is not r.owner or self._cuts.silent(old):
            return False
        for leg in (r.main, r.relay, r.prefill):
            if leg is not None and leg is not old:
                self._orders.release(r, leg)
                r.detach(leg)
        r.displaced = None
        r.main = old
        r.settled = True
        r.trace.because(f"{old.node} is back")
        return True

    def _replace_relay(self, now: float, r: Request) -> bool:
        """A silent relay is left where another one is there; main decode's cut comes first."""
        relay = r.relay
        if relay is None or not self._mesh.fleet.is_suspect(relay.node) or not relay.live:
            return False
        main = r.main
        if main is not None and main.complete and not self._cuts.silent(main):
            return False
        if r.relays >= 3 or not self._others(now, r, Role.RELAY, relay.node):
            return False
        self._leave(r, relay)
        return True

    def _replace_prefill(self, now: float, r: Request) -> bool:
        """A silent prefill that was to draw is left where another one is there."""
        prefill = r.prefill
        if (
            prefill is None
            or r.phase is not Phase.PREFILLING
            or not self._mesh.fleet.is_suspect(prefill.node)
        ):
            return False
        if not self._others(now, r, Role.PREFILL, prefill.node):
            return False
        self._leave(r, prefill)
        return True

    def _replace_main(self, now: float, r: Request) -> bool:
        """A silent main decode is left where a client waits for it and another one is there."""
        main = r.main
        if main is None or not self._mesh.fleet.is_suspect(main.node) or not main.live:
            return False
        covered = r.owner is not None and r.owner is not main and not self._cuts.silent(r.owner)
        if covered or not self._others(now, r, Role.MAIN, main.node):
            return False
        r.trace.because(f"{main.node} is silent")
        self._mesh.count("silent_replaced_total")
        if main is r.owner:
            r.displaced = main
            r.main = None
            r.settled = False
        else:
            self._leave(r, main)
        return True

    def _leave(self, r: Request, leg: Leg) -> None:
        r.trace.because(f"{leg.node} is silent")
        self._mesh.count("silent_replaced_total")
        self._orders.release(r, leg)
        r.detach(leg)

    def _others(self, now: float, r: Request, role: Role, node: str) -> bool:
        shunned = r.shunned(now)
        return any(
            one.node != node
            and one.node not in shunned
            and one.why_not(now) is None
            and now >= one.full_until
            for one in self._mesh.fleet.of(role, r.pool)
        )

    # --- a main decode --------------------------------------------------------------------------------------

    def _seek_main(self, now: float, r: Request) -> bool:
        """Every request has a main decode, or looks for one."""
        if r.main is not None or (r.retry_at is not None and now < r.retry_at):
            return False
        r.retry_at = None
        if r.waiting:
            return False
        sender = self._sender(r)
        base = self._base(r, sender)
        wish = self._sources.wish(now, r, base)
        worker = None if sender is None else self._mesh.fleet.get(sender.node)
        plan = self._mesh.placement.plan(now, r.pool, wish, worker)
        if isinstance(plan, NoRoad):
            self._no_road(now, r, plan)
            return False
        self._take(now, r, plan, base, fresh=sender is None and r.owner is None)
        return True

    def _sender(self, r: Request) -> Leg | None:
        """Who would send to a new main decode."""
        for leg in (r.prefill, r.relay):
            if leg is not None and not self._cuts.silent(leg) and (leg is r.prefill or leg.complete):
                return leg
        return None

    def _base(self, r: Request, sender: Leg | None) -> int:
        """How many ids a new main decode gets KV for. Few outputs are cheaper to extend over than to send
        (ids, not KV).
        """
        base = r.log.prompt_len if r.made <= self._mesh.worker.relay_max_tokens else len(r.log)
        return base if sender is None else min(base, sender.base)

    def _take(self, now: float, r: Request, plan: Plan, tokens: int, *, fresh: bool) -> None:
        """Ask the planned main decode; and prefill and relay at once where it will surely say yes."""
        chosen = plan.chosen
        r.trace.candidates = [one.show() for one in (chosen, *plan.rejected)]
        r.planned = plan.pipeline
        r.singular = fresh and plan.pipeline is Pipeline.P_RLD
        # Alone, it begins without another word: it is told the whole log, and nobody else is to draw.
        nobody = fresh and r.prefill is None and r.relay is None
        alone = chosen.alone if nobody and tokens == len(r.log) else 0
        r.main = self._orders.admit(now, r, Role.MAIN, chosen.node, tokens, parked=r.singular, alone=alone)
        r.trace.nodes[str(Role.MAIN)] = chosen.node
        if not fresh or plan.pipeline is Pipeline.MD or not chosen.ample or chosen.prefill is None:
            return
        worker = self._mesh.fleet.get(chosen.prefill)
        if worker is None:
            return
        self._sources.ask_prefill(now, r, worker)
        if plan.pipeline in (Pipeline.P_RLD_MD, Pipeline.P_RLD) and chosen.relay is not None:
            self._sources.ask_relay(now, r, chosen.relay, len(r.log))

    def begun(self, now: float, r: Request, main: Leg) -> None:
        """Main decode lacks so little that it draws already."""
        lacking = len(r.log) - main.have * r.pool.block_tokens
        r.settled = True
        self._takes(r, Pipeline.MD, f"main decode lacks {lacking} tokens, and has begun")
        self._cuts.begun(now, r, main)

    def _settle(self, now: float, r: Request) -> bool:
        """The pipeline is final once main decode has answered."""
        main = r.main
        if main is None or r.settled or main.state not in (LegState.FILLING, LegState.READY):
            return False
        worker = self._mesh.fleet.get(main.node)
        if worker is None:
            return False
        r.settled = True
        sender = self._sender(r)
        if sender is not None and not self._mesh.fleet.connected(sender.node, main.node):
            sender = None
        relaying = r.owner is not None and r.owner is r.relay
        through = None if sender is None else self._mesh.fleet.get(sender.node)
        wish = self._sources.wish(now, r, main.base)
        match = Match(main.have, main.expected)
        with self._orders.put_aside(r):
            road = self._mesh.placement.road(now, r.pool, wish, worker, match, through)
        self._choose(now, r, road, relaying=relaying)
        return True

    def _choose(self, now: float, r: Request, road: Candidate, *, relaying: bool) -> None:
        pipeline = road.pipeline
        if pipeline is None:
            if not r.made and road.obstacle is Obstacle.LINE:
                self._no_road(now, r, NoRoad(Obstacle.LINE, (road,), wait=road.wait))
                return
            pipeline = Pipeline.P_MD
        if relaying and pipeline is not Pipeline.MD:
            pipeline = Pipeline.P_RLD_MD
        self._takes(r, pipeline, road.reason)
        if pipeline is Pipeline.MD:
            self._alone(r)
        elif pipeline is Pipeline.P_MD and r.relay is not None and r.relay is not r.owner:
            relay = r.relay
            self._orders.release(r, relay)
            r.detach(relay)
        if pipeline is not Pipeline.MD and not r.made and r.prefill is None and r.owner is None:
            prefill = None if road.prefill is None else self._mesh.fleet.get(road.prefill)
            if prefill is not None:
                self._sources.ask_prefill(now, r, prefill)
                if r.relay is None and road.relay is not None and pipeline is not Pipeline.P_MD:
                    self._sources.ask_relay(now, r, road.relay, len(r.log))

    def _takes(self, r: Request, pipeline: Pipeline, reason: str) -> None:
        r.pipeline = pipeline
        r.trace.pipeline = str(pipeline)
        r.trace.because(f"{pipeline}: {reason}")
        r.singular = pipeline is Pipeline.P_RLD
        self._mesh.count(f"pipeline_{pipeline}_total")

    def _alone(self, r: Request) -> None:
        """Main decode alone: who was asked too early is let go."""
        prefill, relay = r.prefill, r.relay
        if prefill is not None:
            if prefill.state is LegState.ASKED:
                self._mesh.count("prefill_wasted_tokens_total", prefill.base)
            self._orders.release(r, prefill)
            r.detach(prefill)
        if relay is not None and relay is not r.owner:
            self._orders.release(r, relay)
            r.detach(relay)

    # --- waiting --------------------------------------------------------------------------------------------

    def _blocked(self, now: float, r: Request) -> None:
        """Note since when a request has nobody who draws and nothing on its way."""
        moving = not self._cuts.silent(r.drawing) or any(
            leg.state is LegState.ASKED
            or leg.state is LegState.READY
            or (
                leg.state is LegState.FILLING and leg.source is not None and not self._cuts.silent(leg.source)
            )
            for leg in r.decoders()
            if not self._cuts.silent(leg)
        )
        if moving:
            r.blocked_at = None
            return
        if r.hopeless:
            self._no_road(now, r, NoRoad(Obstacle.TOO_LONG, details=r.hopeless))
            return
        if r.blocked_at is None:
            r.blocked_at = now
        if r.retry_at is None or r.retry_at <= now:
            r.retry_at = now + RETRY
