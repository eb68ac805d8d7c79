"""What dies, and what becomes of the request: each row of the failure table changes the record, then the
rules go on.

A leg that failed is out; steering finds who does its part next. Here is decided what is forgiven, who is
not asked again, and when it was too often.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.router.endings import Endings
from services.router.legs import Leg, LegState
from services.router.lifecycle import Request
from services.router.mesh import Mesh
from services.router.orders import Orders
from services.router.phases import Phase
from services.router.wish import Obstacle
from shared.errors import DeadlineExceeded, InvalidRequest
from shared.wire.messages import Failed, FailReason, Missing, Refused, RefuseReason, Role

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Row:
    """How a reason counts: against the request (`fault`) or as a loss, against the worker, and how long it
    is left out.
    """

    fault: bool
    blames_worker: bool
    shun: float


ROWS: dict[FailReason, Row] = {
    FailReason.REVOKED: Row(fault=False, blames_worker=False, shun=1.0),
    FailReason.PARKED: Row(fault=False, blames_worker=False, shun=0.5),
    FailReason.PRESSURE: Row(fault=False, blames_worker=False, shun=2.0),
    FailReason.LIMIT: Row(fault=False, blames_worker=False, shun=0.0),
    FailReason.DRAIN: Row(fault=False, blames_worker=False, shun=5.0),
    FailReason.STALLED: Row(fault=False, blames_worker=True, shun=1.0),
    FailReason.NAN: Row(fault=True, blames_worker=True, shun=1.0),
    FailReason.TIMEOUT: Row(fault=False, blames_worker=False, shun=1.0),
    FailReason.INTERNAL: Row(fault=True, blames_worker=True, shun=1.0),
    FailReason.GRAMMAR: Row(fault=False, blames_worker=False, shun=0.0),
}

COUNTS_AS_LOSS = frozenset({FailReason.STALLED, FailReason.TIMEOUT})


class Failures:
    """Each method is one way to lose a leg, a ticket or an answer. The caller advances the request
    afterwards.
    """

    def __init__(self, mesh: Mesh, orders: Orders, endings: Endings) -> None:
        self._mesh = mesh
        self._orders = orders
        self._endings = endings

    # --- answers --------------------------------------------------------------------------------------------

    def refused(self, now: float, r: Request, leg: Leg, refused: Refused) -> None:
        """An Admit or a Prefill was refused: nothing is kept there."""
        reason, after = refused.reason, max(0.1, refused.retry_after_ms / 1000)
        r.trace.because(f"{leg.node} refused: {reason}")
        self._mesh.count(f"refused_{reason}_total")
        self._out(r, leg)
        if reason is RefuseReason.BAD_REQUEST:
            self._endings.fail(now, r, InvalidRequest(refused.detail or f"{leg.node} refused the request"))
            return
        if reason is RefuseReason.TOO_LONG:
            r.shun(leg.node, FOREVER, Obstacle.TOO_LONG)
            if leg.role is Role.PREFILL and self._fits_nowhere(r):
                r.hopeless = refused.detail or f"{len(r.log)} tokens are too many for every prefill worker"
            return
        worker = self._mesh.fleet.get(leg.node)
        if worker is not None and reason in (RefuseReason.NO_BLOCKS, RefuseReason.QUEUE_FULL):
            worker.full_until = max(worker.full_until, now + min(after, 1.0))  # or until it reports more room
        else:
            r.shun(leg.node, now + after)

    def _fits_nowhere(self, r: Request) -> bool:
        """Whether every prefill worker has said that the request is too long for it."""
        workers = self._mesh.fleet.of(Role.PREFILL, r.pool)
        return all(r.avoid.get(one.node, (0.0, None))[1] is Obstacle.TOO_LONG for one in workers)

    def unanswered(self, now: float, r: Request, leg: Leg) -> None:
        """No answer to an Admit in time: another worker is asked, where there is one."""
        r.trace.because(f"{leg.node} did not answer")
        self._mesh.count("admit_timeouts_total")
        self._blame(now, leg)
        self._orders.release(r, leg)
        r.detach(leg)
        r.shun(leg.node, now + self._mesh.policy.admit_timeout, Obstacle.SILENT)
        self._lost_one(now, r, leg, "gave no answer")

    # --- failures -------------------------------------------------------------------------------------------

    def failed(self, now: float, r: Request, leg: Leg, failed: Failed) -> None:
        """A worker gives its part up."""
        row = ROWS[failed.reason]
        r.trace.because(f"{leg.node} failed: {failed.reason}")
        self._mesh.count(f"failed_{failed.reason}_total")
        if row.blames_worker:
            self._blame(now, leg)
        if row.shun:
            r.shun(leg.node, now + row.shun)
        if failed.reason is FailReason.LIMIT:
            r.relay_off = True
        self._give_up(r, leg)
        if now >= r.deadline:
            self._endings.fail(now, r, DeadlineExceeded("the request's deadline has passed"))
        elif failed.reason is FailReason.GRAMMAR:
            self._endings.fail(now, r, InvalidRequest(failed.detail or "the grammar cannot be followed"))
        elif row.fault:
            self._failed_one(
                now, r, leg, f"{failed.reason}: {failed.detail}" if failed.detail else failed.reason
            )
        elif failed.reason in COUNTS_AS_LOSS:
            self._lost_one(now, r, leg, failed.reason)

    def ticket_failed(self, now: float, r: Request, target: Leg, reason: str) -> None:
        """A sender cannot go on with one transfer: its receiver is asked again, for another ticket and
        sender.
        """
        source = target.source
        r.trace.because(f"transfer to {target.node} ended: {reason}")
        target.source = None
        if source is not None:
            self._lost_one(now, r, source, reason)

    def missing(self, now: float, r: Request, target: Leg, missing: Missing) -> None:
        """A sender has not got the blocks any more (or was told of a receiver that was born again)."""
        source = target.source
        self._mesh.count("missing_total")
        r.trace.because(f"{source.node if source else '?'} misses block {missing.first_block}")
        target.source = None
        if source is None:
            return
        source.bare = True
        if source is not r.relay:
            self._give_up(r, source)
        if not source.holds_rid:
            r.shun(source.node, now + 1.0)
        self._lost_one(now, r, source, "blocks are gone")

    def diverged(self, now: float, r: Request, leg: Leg) -> None:
        """A sender repeated other ids than the log has (I1): it has no part in the request any more."""
        self._mesh.count("divergence_total")
        self._blame(now, leg)
        self._give_up(r, leg)
        r.shun(leg.node, now + 1.0)
        self._failed_one(now, r, leg, "divergence")

    def lost(self, now: float, r: Request, leg: Leg) -> None:
        """The worker's session has ended."""
        r.trace.because(f"{leg.node} is lost")
        self._mesh.count(f"legs_lost_{leg.role}_total")
        self._out(r, leg)
        self._lost_one(now, r, leg, "lost")

    def stalled(self, now: float, r: Request, leg: Leg) -> None:
        """An owner whose engine makes no steps."""
        r.trace.because(f"{leg.node} makes no steps")
        self._mesh.count("owner_stalls_total")
        self._give_up(r, leg)
        r.shun(leg.node, now + 5.0)
        self._lost_one(now, r, leg, "makes no steps")

    # --- counting -------------------------------------------------------------------------------------------

    def _failed_one(self, now: float, r: Request, leg: Leg, why: str) -> None:
        r.failures += 1
        r.last_failure = f"{leg.node} ({why})"
        if r.failures >= self._mesh.policy.max_failures and r.phase not in (Phase.CLOSING, Phase.ENDED):
            self._endings.gave_up(now, r)

    def _lost_one(self, now: float, r: Request, leg: Leg, why: str) -> None:
        r.losses += 1
        r.last_failure = f"{leg.node} ({why})"
        if r.losses >= self._mesh.policy.max_losses and r.phase not in (Phase.CLOSING, Phase.ENDED):
            self._endings.gave_up(now, r)

    def _blame(self, now: float, leg: Leg) -> None:
        worker = self._mesh.fleet.get(leg.node)
        if worker is not None:
            worker.breaker.failed(now)

    def _give_up(self, r: Request, leg: Leg) -> None:
        """Out, and told so: whatever is left of it there ends."""
        self._orders.release(r, leg)
        r.detach(leg)
        self._orphan(r, leg)

    def _out(self, r: Request, leg: Leg) -> None:
        """Out, without a word: it is gone, or keeps nothing."""
        self._orders.drop(leg)
        r.detach(leg)
        self._orphan(r, leg)

    def _orphan(self, r: Request, source: Leg) -> None:
        """Who was to be sent to by this leg has no sender now."""
        for leg in r.decoders():
            if leg.source is source and leg.state is LegState.FILLING:
                leg.source = None
