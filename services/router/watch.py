"""Looks at requests when they want to be looked at: deadlines, answers that do not come, gaps in the log,
waits.
"""

from __future__ import annotations

from services.router.endings import Endings
from services.router.failures import Failures
from services.router.legs import LegState
from services.router.lifecycle import Request
from services.router.mesh import Mesh
from services.router.orders import Orders
from services.router.phases import Phase
from services.router.steering import Steering
from shared.errors import DeadlineExceeded, Unavailable
from shared.wire.messages import Rid
from shared.worker.timers import Timers

MOST_RESUMES = 5
"""Times that an owner is asked for the same missing ids before it is given up."""


class Watch:
    """One timer per request."""

    def __init__(
        self,
        mesh: Mesh,
        requests: dict[Rid, Request],
        timers: Timers,
        orders: Orders,
        steering: Steering,
        failures: Failures,
        endings: Endings,
    ) -> None:
        self._mesh = mesh
        self._requests = requests
        self._timers = timers
        self._orders = orders
        self._steering = steering
        self._failures = failures
        self._endings = endings

    def look(self, now: float, r: Request) -> None:
        """Have a request do what it can, and arm its timer."""
        self._steering.advance(now, r)
        self.touched(now, r)

    def look_at_stuck(self, now: float) -> None:
        """Who is there has changed: requests without a road look again."""
        for r in list(self._requests.values()):
            if (r.blocked_at is not None or r.main is None) and not r.waiting:
                r.retry_at = None
                self.look(now, r)

    def look_at_all_on(self, now: float, node: str) -> None:
        """Something about a worker has changed."""
        for r in [r for r in self._requests.values() if r.on(node)]:
            self.look(now, r)

    def touched(self, now: float, r: Request) -> None:
        """Arm a request's timer: it only comes sooner, what it finds then decides."""
        if r.phase is Phase.ENDED:
            return
        policy = self._mesh.policy
        at = r.wake_at(now, policy.admit_timeout, self._gap_wait(r), policy.replace_wait)
        self._timers.sooner(("request", r.rid), at)

    def forget(self, rid: Rid) -> None:
        """The request is over."""
        self._timers.clear(("request", rid))

    def due(self, now: float, rid: Rid) -> None:
        """A request's timer has come."""
        r = self._requests.get(rid)
        if r is None:
            return
        if r.phase is Phase.CLOSING:
            if r.closing_at is not None and now >= r.closing_at:
                self._endings.expire(now, r)
            self.touched(now, r)
        elif now >= r.deadline:
            seconds = r.deadline - r.trace.submitted
            self._endings.fail(
                now, r, DeadlineExceeded(f"the request's deadline of {seconds:.1f} s has passed")
            )
        elif r.waiting and r.waits_until is not None and now >= r.waits_until:
            self._endings.waited_too_long(now, r)
        elif r.blocked_at is not None and now >= r.blocked_at + self._mesh.policy.replace_wait:
            self._endings.stranded(now, r)
        else:
            self._check_answers(now, r)
            self._check_gap(now, r)
            self.look(now, r)

    def end_all(self, now: float) -> None:
        """The time to drain is over."""
        for r in list(self._requests.values()):
            if r.phase is Phase.CLOSING:
                self._endings.expire(now, r)
            else:
                error = Unavailable("this router has shut down before the answer was finished", 1.0)
                self._endings.fail(now, r, error)

    def _check_answers(self, now: float, r: Request) -> None:
        for leg in r.decoders():
            if leg.state is LegState.ASKED and now >= leg.asked_at + self._mesh.policy.admit_timeout:
                self._failures.unanswered(now, r, leg)

    def _check_gap(self, now: float, r: Request) -> None:
        """Ask the owner for ids that are missing from the log."""
        since, leg = r.log.gap_since, r.drawing
        if since is None or now < since + self._gap_wait(r):
            return
        r.log.asked_again(now)
        if leg is None:
            return
        r.resumes += 1
        if r.resumes > MOST_RESUMES:
            self._failures.stalled(now, r, leg)
        else:
            self._orders.resume(r, leg)

    def _gap_wait(self, r: Request) -> float:
        leg = r.drawing
        rtt = 0.0 if leg is None else self._mesh.fleet.rtt(leg.node)
        return 2 * rtt + self._mesh.policy.gap_grace
