"""Whether a request may come in, and in which order those that wait for room are served. No clock, no
workers.

Load is shed before it collapses (I8): a request is refused at once where what is ahead of it would keep it
waiting too long, so that whoever is let wait is served. A burst may fill the room; a queue that stands does
nothing but make everybody late, so it is kept short. Within a priority tenants are served by deficit round
robin over what their requests keep busy: prefill or line, whichever is longer. Costs are microseconds of
that.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from shared.errors import Overloaded
from shared.policy.config import RouterPolicy
from shared.wire.messages import Rid

QUANTUM = 20_000
"""Microseconds of the mesh that a tenant may be served more of than it has earned, per turn."""

LET_WAIT = 0.5
"""Part of `queue_wait` up to which a wait that is expected lets a request in: what is expected may be wrong
by as much again before anybody is sent away late."""

STANDING = 0.2
"""The same where requests have been waiting without a break for `queue_wait`."""

DRAIN_SAMPLES = 64
"""Last ends that the drain rate looks back on."""

DRAIN_LEAST = 1.0
"""Seconds of waiting before ends say anything."""

RETRY_LEAST, RETRY_MOST = 1.0, 60.0


class DrainRate:
    """Requests/s that end while others wait: only then do ends tell how fast room comes."""

    def __init__(self) -> None:
        self._since: float | None = None  # since when some have been waiting
        self._ends: deque[float] = deque(maxlen=DRAIN_SAMPLES)

    def waiting(self, now: float, *, some: bool) -> None:
        """Whether requests wait for room now."""
        if not some:
            self._since = None
            self._ends.clear()
        elif self._since is None:
            self._since = now

    def standing(self, now: float) -> float:
        """Seconds for which some have been waiting without a break."""
        return 0.0 if self._since is None else now - self._since

    def ended(self, now: float) -> None:
        """A request that had a place has ended."""
        if self._since is not None:
            self._ends.append(now)

    def seconds_for(self, now: float, requests: int) -> float:
        """How long so many requests take to end; 0.0 while that is not known."""
        if self._since is None:
            return 0.0
        first = self._since if len(self._ends) < DRAIN_SAMPLES else self._ends[0]
        span = now - first
        if span < DRAIN_LEAST:
            return 0.0
        return requests * span / max(1, len(self._ends))


class _Tenant:
    """One tenant's queue in one priority."""

    def __init__(self) -> None:
        self.queue: OrderedDict[Rid, int] = OrderedDict()
        self.credit = 0

    @property
    def head(self) -> tuple[Rid, int]:
        return next(iter(self.queue.items()))

    @property
    def cost(self) -> int:
        """Of all that wait here."""
        return sum(self.queue.values())


class Ahead(NamedTuple):
    """What is served before a request that comes now."""

    requests: int
    cost: int


class WaitingRoom:
    """Requests that wait for room, lowest priority number first, tenants in turn."""

    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[str, _Tenant]] = {}
        self._where: dict[Rid, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, rid: Rid) -> bool:
        return rid in self._where

    def add(self, rid: Rid, tenant: str, priority: int, cost: int) -> None:
        """Wait in the tenant's queue. One placed in vain has its old place again."""
        if rid in self._where:
            return
        level = self._levels.setdefault(priority, OrderedDict())
        if tenant not in level:
            level[tenant] = _Tenant()
        queue = level[tenant].queue
        earlier = bool(queue) and rid < next(reversed(queue))
        queue[rid] = max(1, cost)
        if earlier:
            level[tenant].queue = OrderedDict(sorted(queue.items()))
        self._where[rid] = (priority, tenant)

    def remove(self, rid: Rid, *, served: bool = False) -> None:
        """Leave the room; one that was served is charged to its tenant."""
        where = self._where.pop(rid, None)
        if where is None:
            return
        priority, name = where
        level = self._levels[priority]
        tenant = level[name]
        cost = tenant.queue.pop(rid)
        if served:
            tenant.credit -= cost
        if not tenant.queue:
            del level[name]
        if not level:
            del self._levels[priority]

    def ahead(self, tenant: str, priority: int) -> Ahead:
        """What is served before one more request: all of a lower number, and of its own level at most as much
        of every other tenant's as waits of its own.
        """
        requests = cost = 0
        for number, level in self._levels.items():
            if number > priority:
                continue
            own = level.get(tenant)
            for name, other in level.items():
                count, costs = len(other.queue), other.cost
                if number == priority and name != tenant:
                    count = min(count, 1 if own is None else 1 + len(own.queue))
                    costs = min(costs, QUANTUM if own is None else QUANTUM + own.cost)
                requests += count
                cost += costs
        return Ahead(requests, cost)

    def after(self, tried: set[Rid]) -> Rid | None:
        """The next one that was not tried: a large request at the head does not keep all others waiting."""
        for _, level in sorted(self._levels.items()):
            for tenant in level.values():
                for rid in tenant.queue:
                    if rid not in tried:
                        return rid
        return None

    def oldest(self) -> Rid | None:
        """The one that came first of all."""
        return min(self._where, default=None)

    def peek(self) -> Rid | None:
        """Whose turn it is."""
        if not self._levels:
            return None
        level = self._levels[min(self._levels)]
        # All turns before anybody's credit suffices, at once: a request may cost any number of them.
        turns = min(-((tenant.credit - tenant.head[1]) // QUANTUM) for tenant in level.values())
        if turns > 1 < len(level):
            for tenant in level.values():
                tenant.credit += (turns - 1) * QUANTUM
        while True:
            tenant = next(iter(level.values()))
            rid, cost = tenant.head
            if len(level) == 1:
                tenant.credit = max(tenant.credit, cost)
            if tenant.credit >= cost:
                return rid
            tenant.credit += QUANTUM
            level.move_to_end(next(iter(level)))


class Admission:
    """Bounds on live and waiting requests, with the time to come back after."""

    def __init__(self, policy: RouterPolicy) -> None:
        self._policy = policy
        self.room = WaitingRoom()
        self.drain = DrainRate()
        self.refused = 0

    def enter(
        self, now: float, rid: Rid, tenant: str, priority: int, cost: int, backlog: float = 0.0
    ) -> None:
        """Wait for room behind `backlog` seconds that workers have queued. Raises Overloaded where that would
        take too long.
        """
        if rid not in self.room:
            self.check_wait(now, tenant, priority, backlog)
            self.room.add(rid, tenant, priority, cost)
            self.drain.waiting(now, some=True)

    def leave(self, now: float, rid: Rid, *, served: bool = False) -> None:
        """Wait no longer."""
        if rid in self.room:
            self.room.remove(rid, served=served)
            self.drain.waiting(now, some=bool(len(self.room)))

    def check(self, now: float, live: int) -> None:
        """Raises Overloaded where one more request may not come in."""
        if live >= self._policy.max_requests:
            raise self.overloaded(now, f"{live} requests are being served, the most this router takes", 1)

    def check_wait(self, now: float, tenant: str = "", priority: int = 0, backlog: float = 0.0) -> None:
        """The same for one that would have to wait for room."""
        waiting = len(self.room)
        ahead = self.room.ahead(tenant, priority)
        wait = max(self.drain.seconds_for(now, ahead.requests + 1), backlog + 1e-6 * ahead.cost)
        if waiting >= self._policy.max_waiting:
            raise self.overloaded(now, f"{waiting} requests wait for room, the most that may", waiting, wait)
        if wait > self.patience(now):
            raise self.overloaded(now, f"{waiting} requests wait for room, about {wait:.0f} s", waiting, wait)

    def patience(self, now: float) -> float:
        """Seconds of waiting that a request may be let in for."""
        whole = self._policy.queue_wait
        standing = self.drain.standing(now) >= whole
        return whole * (STANDING if standing else LET_WAIT)

    def overloaded(self, now: float, why: str, ahead: int, wait: float = 0.0) -> Overloaded:
        """The refusal, with Retry-After from the drain rate, or the wait that is expected."""
        self.refused += 1
        after = self.retry_after(now, ahead, wait)
        return Overloaded(f"the service is at its limit: {why}; retry after {after:.0f} s", after)

    def retry_after(self, now: float, ahead: int = 1, wait: float = 0.0) -> float:
        """Seconds after which it makes sense to come back."""
        return min(RETRY_MOST, max(RETRY_LEAST, wait, self.drain.seconds_for(now, max(1, ahead))))
