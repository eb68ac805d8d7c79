"""Who sends to whom: every decoder that lacks blocks gets a sender, in the right class, for as long as it
lacks them.

A ticket belongs to the sender it was first given to. Another sender needs another ticket: the decoder is
asked again, says what it has by now, and the next Attach sends the rest. So resume, retry and a dead sender
are one thing.
"""

from __future__ import annotations

from services.router.legs import Leg, LegState
from services.router.lifecycle import Request
from services.router.mesh import Mesh
from services.router.orders import Orders
from services.router.phases import Event
from services.router.wish import Wish
from services.router.worker import Worker
from shared.policy.pipeline import Pipeline, local_limit
from shared.wire.messages import Do, Role, TransferClass

MOST_RELAYS = 3
"""Relays that one request is given, one after another."""


class Sources:
    """Rules about transfers. Each returns whether it changed something."""

    def __init__(self, mesh: Mesh, orders: Orders) -> None:
        self._mesh = mesh
        self._orders = orders

    # --- rules ----------------------------------------------------------------------------------------------

    def supply(self, now: float, r: Request) -> bool:
        """Rule: a decoder that lacks blocks and has no sender gets one."""
        if not r.settled:
            return False
        return any(
            leg.state is LegState.FILLING and not self._supplied(r, leg) and self._supply(now, r, leg)
            for leg in (r.relay, r.main)
            if leg is not None
        )

    def go_alone(self, now: float, r: Request) -> bool:
        """Rule: where nobody can send to main decode and a client waits, it extends over what it lacks, if
        that is not too much.
        """
        main = r.main
        if main is None or not r.settled or main.state is not LegState.FILLING or r.pipeline is Pipeline.MD:
            return False
        if self._alive(r.owner) or not self._alive(main) or self._supplied(r, main):
            return False
        if self._alive(main.source) or self._source_for(now, r, main) is not None:
            return False
        lacking = len(r.log) - main.have * r.pool.block_tokens
        if lacking > local_limit(self._mesh.policy, line_up=False, prefill_possible=False):
            r.blocked_why = f"no worker can send to {main.node}, and it lacks {lacking} tokens"
            return False
        r.pipeline = Pipeline.MD
        r.trace.because(f"MD: no worker can send to {main.node}, which lacks {lacking} tokens")
        return True

    def arm(self, now: float, r: Request) -> bool:
        """Rule: a relay that was asked before the prefill which is to start it has to be asked again: its
        runs would come under an older term.
        """
        relay = r.relay
        if relay is None or relay.state not in (LegState.ASKED, LegState.FILLING):
            return False
        if not self._outdated(r, relay):
            return False
        self._again(now, r, relay)
        return True

    def relay(self, now: float, r: Request) -> bool:
        """Rule: a pipeline with a relay has one, while main decode still lacks blocks."""
        if r.relay is not None or r.relay_off or not r.settled or r.relays >= MOST_RELAYS:
            return False
        if r.pipeline not in (Pipeline.P_RLD_MD, Pipeline.P_RLD):
            return False
        main = r.main
        if main is None or main.state is not LegState.FILLING or self._alive(r.owner):
            return False
        source = self._source_for(now, r, None)
        worker = None if source is None else self._mesh.fleet.get(source.node)
        found = None
        if source is not None and worker is not None:
            wish = self.wish(now, r, source.base)
            found = self._mesh.placement.relay(now, r.pool, wish, worker)
        if source is None or found is None:
            r.pipeline = Pipeline.P_MD
            r.singular = False
            r.trace.because("no relay has room")
            return True
        self.ask_relay(now, r, found.node, source.base)
        return True

    def ask_relay(self, now: float, r: Request, node: str, base: int) -> None:
        """Admit to a relay. It may know more than its sender has, as long as it lacks no more blocks."""
        if r.blocks(len(r.log)) == r.blocks(base) and len(r.log) > base + 1:
            base = len(r.log)
        r.relay = self._orders.admit(now, r, Role.RELAY, node, base)
        r.relays += 1

    def reclass(self, now: float, r: Request) -> None:
        """The class of main decode's transfer follows what the client sees meanwhile."""
        main = r.main
        if main is None or main.state is not LegState.FILLING or main.source is None:
            return
        cls = self._class(r)
        if main.cls is not cls and self._alive(main.source):
            self._orders.attach(now, r, main, main.source, cls)

    def trim(self, r: Request) -> None:
        """Release a sender that nobody needs any more."""
        prefill = r.prefill
        if prefill is not None and self._idle(r, prefill):
            self._orders.release(r, prefill)
            r.detach(prefill)
        for leg in r.live_legs():
            if not leg.holds_rid and self._idle(r, leg):
                self._orders.release(r, leg)

    # --- a sender -------------------------------------------------------------------------------------------

    def _supplied(self, r: Request, leg: Leg) -> bool:
        source = leg.source
        return source is not None and self._can_send(source, leg) and not self._better(r, leg, source)

    def _better(self, r: Request, leg: Leg, source: Leg) -> bool:
        """Whether a silent sender should be left: somebody else could send, and a client waits for it."""
        if not self._mesh.fleet.is_suspect(source.node):
            return False
        if self._alive(r.owner):
            return False
        relay = r.relay
        if leg is r.main and relay is not None and relay.complete and self._alive(relay):
            return True
        return self._another_prefill(r, source.node)

    def _supply(self, now: float, r: Request, leg: Leg) -> bool:
        source = self._source_for(now, r, leg)
        if source is None:
            return False
        if leg.source_tried or self._outdated(r, leg):
            self._again(now, r, leg)
            return True
        if leg is r.relay and source is r.prefill and len(r.log) <= source.base + 1:
            leg.armed = True  # prefill sends it First, drawn already or not
            r.log.follow(leg.term)
        elif leg is r.relay and leg.fed < len(r.log):
            # The log is past First: the relay has to know before First, and its last block, come to it.
            self._orders.feed(r, leg, Do.HOLD, leg.term)
        self._orders.attach(now, r, leg, source, self._class(r) if leg is r.main else TransferClass.UNCOVERED)
        return True

    def _again(self, now: float, r: Request, leg: Leg) -> None:
        """Ask a decoder again. A relay is given what a new prefill was given, so that First follows at
        once.
        """
        if self._outdated(r, leg) and r.prefill is not None:
            leg.base = r.prefill.base
        self._orders.readmit(now, r, leg)

    def _source_for(self, now: float, r: Request, leg: Leg | None) -> Leg | None:
        """A leg that can send to `leg` (None: to some relay); a worker is asked for where none is there."""
        for source in (r.prefill, *self._helpers(r), r.relay):
            if source is None or source is leg or source.bare or not self._alive(source):
                continue
            ready = source.complete or source.role is Role.PREFILL
            if ready and (leg is None or (self._covers(r, source, leg) and self._can_send(source, leg))):
                return source
        if leg is None:
            return None
        return self._new_source(now, r, leg)

    def _new_source(self, now: float, r: Request, leg: Leg) -> Leg | None:
        target = self._mesh.fleet.get(leg.node)
        if target is None:
            return None
        wish = self.wish(now, r, leg.upto * r.pool.block_tokens)
        if self._alive(r.owner):
            holder = self._mesh.placement.holder(now, r.pool, wish, target, leg.upto)
            if holder is not None:
                return self._orders.sender(now, r, holder.node, leg.upto * r.pool.block_tokens)
        worker = self._mesh.placement.prefill(now, r.pool, self.wish(now, r, len(r.log)), target)
        if worker is None:
            return None
        return self.ask_prefill(now, r, worker)

    def ask_prefill(self, now: float, r: Request, worker: Worker) -> Leg:
        """Prefill the log somewhere; it draws the next id where nobody else is to."""
        if r.prefill is not None:
            old = r.prefill
            self._orders.release(r, old)
            r.detach(old)
        end = self._mesh.placement.prefill_end(now, r.pool, self.wish(now, r, len(r.log)), worker)
        leg = self._orders.prefill(now, r, worker.node)
        leg.ends_at = now + end
        r.prefill = leg
        r.trace.nodes[str(Role.PREFILL)] = worker.node
        if r.owner is None:
            r.log.own(leg.term)
            r.move(Event.PREFILL)
            self._orders.engaged(now, leg)
        return leg

    # --- small questions ------------------------------------------------------------------------------------

    def wish(self, now: float, r: Request, base: int) -> Wish:
        """The request as numbers, where a decoder is given its first `base` ids and fed the rest."""
        left = max(1, r.log.max_pos - len(r.log))
        prefill, relay = r.prefill, r.relay
        prefilling = prefill is not None and prefill.state is LegState.ASKED
        return Wish(
            tokens=len(r.log),
            hashes=r.hashes(base),
            output=max(1, r.predicted - r.made),
            growth=min(left, self._mesh.worker.growth_tokens),
            deadline=max(0.0, r.deadline - now),
            local_allowed=r.spec.local_allowed,
            relay_allowed=r.spec.relay_allowed
            and not r.relay_off
            and (relay is not None or r.relays < MOST_RELAYS),
            singular_allowed=r.spec.singular_allowed and r.singular_allowed and (r.singular or not r.made),
            patient=bool(r.made),
            avoid=r.shunned(now),
            prefill="" if prefill is None else prefill.node,
            prefill_end=max(0.0, prefill.ends_at - now) if prefill is not None and prefilling else 0.0,
            relay="" if relay is None else relay.node,
        )

    def _alive(self, leg: Leg | None) -> bool:
        return leg is not None and leg.live and not self._mesh.fleet.is_suspect(leg.node)

    def _helpers(self, r: Request) -> list[Leg]:
        return [leg for leg in r.live_legs() if not leg.holds_rid]

    def _outdated(self, r: Request, leg: Leg) -> bool:
        """Whether a relay was asked before the prefill that is to start it."""
        return leg is r.relay and r.prefill is not None and leg.term < r.prefill.term

    def _covers(self, r: Request, source: Leg, leg: Leg) -> bool:
        return source.base // r.pool.block_tokens >= leg.upto

    def _can_send(self, source: Leg, leg: Leg) -> bool:
        return source.live and self._mesh.fleet.connected(source.node, leg.node)

    def _another_prefill(self, r: Request, node: str) -> bool:
        workers = self._mesh.fleet.of(Role.PREFILL, r.pool)
        return any(
            one.node != node and not one.suspect and one.announce is not None and not one.announce.draining
            for one in workers
        )

    def _idle(self, r: Request, leg: Leg) -> bool:
        """Whether a sender has drawn its id (or need not) and no decoder waits for its blocks."""
        if leg.state is LegState.ASKED and r.drawing is leg:
            return False
        if not r.settled and leg.holds_rid:
            return False
        waiting = (LegState.ASKED, LegState.FILLING)
        return all(one is r.owner or one.state not in waiting for one in r.decoders())

    def _class(self, r: Request) -> TransferClass:
        if r.singular and r.made <= r.predicted:
            return TransferClass.PARKED
        if r.relay is not None and r.relay.live:
            return TransferClass.COVERED
        return TransferClass.UNCOVERED
