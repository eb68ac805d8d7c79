"""How a request ends: by its log, by its client, by its deadline or by an error; and what is still owed to
main decode (I2).

Every leg is released once. What ends normally before its cut leaves the rest of its transfer as an
alignment, a separate object of the two workers; only a request whose main decode has not answered yet stays
for that answer (closing).
"""

from __future__ import annotations

from collections.abc import Callable

from services.router.admissions import Admissions
from services.router.legs import Leg, LegState
from services.router.lifecycle import Request
from services.router.log import End
from services.router.mesh import Mesh
from services.router.orders import Orders
from services.router.phases import Event
from services.router.prediction import OutputPrediction, SingularMemory
from services.router.recent import RecentSessions, Session
from services.router.requests import Broken, Done
from services.router.wish import NoRoad, Obstacle
from shared.errors import InvalidRequest, MeshError, Overloaded, RequestFailed, Unavailable
from shared.kv.hashing import pack_ids
from shared.wire.messages import TransferClass


class Endings:
    """The last words about requests."""

    def __init__(
        self,
        mesh: Mesh,
        orders: Orders,
        admissions: Admissions,
        prediction: OutputPrediction,
        singular: SingularMemory,
        recent: RecentSessions,
        ended: Callable[[float, Request], None],
    ) -> None:
        self._mesh = mesh
        self._orders = orders
        self._admissions = admissions
        self._prediction = prediction
        self._singular = singular
        self._recent = recent
        self._ended = ended

    # --- good ends ------------------------------------------------------------------------------------------

    def finish(self, now: float, r: Request, end: End) -> None:
        """The log has ended: the client is told, main decode gets what it is owed."""
        r.trace.mark("end", now)
        r.outcome = str(end.reason)
        r.trace.pipeline = str(r.pipeline or r.planned)
        made = end.at - r.log.prompt_len
        self._prediction.observe(r.spec.kind, r.spec.session, made)
        singular = r.singular
        if singular:
            self._singular.ended_at_relay(r.hashes(r.log.prompt_len))
        else:
            self._singular.ended_at_main(r.hashes(r.log.prompt_len))
            self._remember(r, end)
        cached = min((r.md_hit or 0) * r.pool.block_tokens, r.log.prompt_len)
        self._mesh.emit(r.rid, Done(end.reason, end.at, cached, r.trace.show()))
        self._mesh.count("requests_finished_total")
        if singular:
            self._release_all(r)
            self._close(now, r)
        else:
            self._align(now, r)

    def _remember(self, r: Request, end: End) -> None:
        """Main decode has, or is being sent, this session: should it restart, the session can be brought
        back.
        """
        if r.main is not None:
            ids = pack_ids(r.log.ids[: end.at])
            hashes = tuple(r.hashes(end.at))
            self._recent.remember(Session(r.pool, r.spec.salt, ids, hashes, r.main.node))

    def _align(self, now: float, r: Request) -> None:
        """I2: main decode has the prompt, or is still sent it, or that was dropped and counted."""
        main, prefill = r.main, r.prefill
        if main is not None and main.complete:
            self._release_all(r)
            self._close(now, r)
        elif main is not None and main.state is LegState.ASKED and prefill is not None:
            self._owe(now, r, main, prefill)
        elif main is not None and main.state is LegState.FILLING and self._sends(main, prefill):
            assert prefill is not None
            if main.source is None:
                self._orders.attach(now, r, main, prefill, TransferClass.ALIGNMENT)
            self._mesh.count("alignments_total")
            self._orders.release(r, prefill, align=True)
            self._orders.release(r, main, align=True)
            self._release_all(r)
            self._close(now, r)
        else:
            self._mesh.count("alignments_dropped_total")
            self._release_all(r)
            self._close(now, r)

    def _owe(self, now: float, r: Request, main: Leg, prefill: Leg) -> None:
        r.move(Event.OWE)
        r.closing_at = now + self._mesh.policy.admit_timeout
        for leg in r.live_legs():
            if leg not in (main, prefill):
                self._orders.release(r, leg)
        r.relay = r.owner = r.displaced = None

    def answered(self, now: float, r: Request) -> None:
        """Main decode has answered a request that is closing."""
        self._align(now, r)

    def expire(self, now: float, r: Request) -> None:
        """Nothing came of a request that is closing."""
        self._mesh.count("alignments_dropped_total")
        self._release_all(r)
        self._close(now, r)

    def _sends(self, main: Leg, prefill: Leg | None) -> bool:
        """Whether the request's prefill sends, or can be told to send, what main decode lacks."""
        if prefill is None or not prefill.live or self._mesh.fleet.is_suspect(prefill.node):
            return False
        if main.source is not None:
            return main.source is prefill
        return not main.source_tried and self._mesh.fleet.connected(prefill.node, main.node)

    # --- other ends -----------------------------------------------------------------------------------------

    def cancel(self, now: float, r: Request) -> None:
        """The client is gone: everything is released, nothing more is said."""
        self._mesh.count("requests_cancelled_total")
        r.outcome = r.outcome or "cancelled"
        self._release_all(r)
        self._close(now, r)

    def fail(self, now: float, r: Request, error: MeshError) -> None:
        """The request cannot be finished."""
        r.outcome = error.code
        if not r.accepted:
            r.refusal = error
        else:
            self._mesh.emit(r.rid, Broken(error))
            self._mesh.count("requests_broken_total")
            self._mesh.count(f"requests_broken_{error.code}_total")
        self._release_all(r)
        self._close(now, r)

    def no_road(self, now: float, r: Request, road: NoRoad) -> None:
        """Placement found nobody: the request waits where that can help, else it ends."""
        busy = bool(r.made) or r.owner is not None
        never = road.obstacle is Obstacle.TOO_LONG
        if never and (not r.accepted or any(why is Obstacle.TOO_LONG for _, why in r.avoid.values())):
            self.fail(now, r, self._too_long(r, road))
        elif road.obstacle is Obstacle.LINE and not busy:
            wait = max(1.0, road.wait)
            self._admissions.of(r.spec.model).refused += 1
            self.fail(now, r, Overloaded(f"the line to main decode is behind: {road.why()}", wait))
        elif road.obstacle is Obstacle.NONE and not r.accepted:
            self.fail(now, r, Unavailable(f"no pipeline is possible now: {road.why()}", 2.0))
        elif not busy and road.obstacle in (Obstacle.FULL, Obstacle.SILENT):
            self._wait(now, r, road)
        else:
            r.blocked_why = road.why()
            r.retry_at = now + 0.25

    def _wait(self, now: float, r: Request, road: NoRoad) -> None:
        """Into the waiting room, without anything kept at workers."""
        try:
            admission = self._admissions.of(r.spec.model)
            cost = max(1, int(1e6 * min(road.demand.seconds, r.deadline - r.trace.submitted)))
            admission.enter(now, r.rid, r.spec.tenant, r.spec.priority, cost, road.demand.backlog)
        except Overloaded as refused:
            self.fail(now, r, refused)
            return
        if r.waits_until is None or now > r.waits_until:
            r.waits_until = now + self._mesh.policy.queue_wait
            self._mesh.count("requests_waited_total")
        r.waiting = True
        r.blocked_why, r.blocked_by = road.why(), road.obstacle
        prefill = r.prefill
        if prefill is not None and prefill.state is LegState.ASKED:
            self._mesh.count("prefill_wasted_tokens_total", prefill.base)
        for leg in r.live_legs():
            self._orders.release(r, leg)
            r.detach(leg)

    def waited_too_long(self, now: float, r: Request) -> None:
        """No room came in time."""
        if r.blocked_by is Obstacle.SILENT:
            self.fail(now, r, Unavailable(f"no main decode worker answers: {r.blocked_why}", 5.0))
            return
        admission = self._admissions.of(r.spec.model)
        why = r.blocked_why or "no worker had room"
        self.fail(now, r, admission.overloaded(now, why, len(admission.room)))

    def stranded(self, now: float, r: Request) -> None:
        """Nobody could take the request on for `replace_wait`."""
        after = self._mesh.policy.replace_wait
        why = r.blocked_why or r.last_failure or "its workers are gone"
        self.fail(now, r, Unavailable(f"nobody could go on with the request for {after:.0f} s: {why}", 5.0))

    def gave_up(self, now: float, r: Request) -> None:
        """Workers failed at it too often."""
        self.fail(
            now, r, RequestFailed(f"the request failed on {r.last_failure}; it was tried again in vain")
        )

    def _too_long(self, r: Request, road: NoRoad) -> MeshError:
        message = f"{len(r.log)} tokens (prompt and answer so far) fit no worker: {road.why()}"
        return RequestFailed(message) if r.made else InvalidRequest(message)

    # --- common ---------------------------------------------------------------------------------------------

    def _release_all(self, r: Request) -> None:
        for leg in r.live_legs():
            self._orders.release(r, leg)

    def _close(self, now: float, r: Request) -> None:
        r.main = r.relay = r.prefill = r.owner = r.displaced = None
        r.move(Event.END)
        admission = self._admissions.of(r.spec.model)
        admission.leave(now, r.rid)
        if r.made:
            admission.drain.ended(now)
        self._ended(now, r)
