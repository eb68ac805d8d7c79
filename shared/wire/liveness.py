"""Whether a peer gives signs of life, and what its silence asks for (pure; `now` comes in).

A silence of this side's own making (a process that was stopped or busy) is not held against the peer.
"""

from __future__ import annotations

import enum

from shared.policy.config import LinkPolicy


class Act(enum.Enum):
    PING = "ping"  # send one
    SUSPECT = "suspect"  # no sign of life for suspect_after
    ALIVE = "alive"  # a sign again after a suspicion
    DROP_CONTROL = "drop control"  # the control connection is silent: make another
    DROP_BULK = "drop bulk"  # so are the bulk connections
    LOST = "lost"  # without a control connection for the length of the lease


class Liveness:
    """One peer's clock. Call `tick` every `period` seconds and whenever bytes came."""

    def __init__(self, policy: LinkPolicy, now: float) -> None:
        self._policy = policy
        self._heard = now  # on any connection
        self._heard_control = now
        self._pinged = now
        self._ticked = now
        self._disconnected: float | None = now
        self._suspect = False

    @staticmethod
    def period(policy: LinkPolicy) -> float:
        """Seconds between ticks."""
        return min(policy.ping_every, policy.suspect_after) / 2

    @property
    def suspect(self) -> bool:
        return self._suspect

    def heard(self, now: float, *, control: bool) -> bool:
        """Bytes came. Whether the peer was suspect: then `tick` has something to say."""
        self._heard = now
        if control:
            self._heard_control = now
        return self._suspect

    def connected(self, now: float) -> None:
        """A control connection is there; its handshake was a sign of life."""
        self._disconnected = None
        self._heard = self._heard_control = self._pinged = now

    def disconnected(self, now: float) -> None:
        self._disconnected = now

    def tick(self, now: float) -> list[Act]:
        """What is due, in order."""
        self._forgive(now)
        policy = self._policy
        if self._disconnected is not None and now - self._disconnected >= policy.lease:
            return [Act.LOST]
        acts = []
        silent = now - self._heard >= policy.suspect_after
        if silent != self._suspect:
            self._suspect = silent
            acts.append(Act.SUSPECT if silent else Act.ALIVE)
        if self._disconnected is None:
            if now - self._heard_control >= policy.suspect_after:
                acts.append(Act.DROP_CONTROL)
                if silent:
                    acts.append(Act.DROP_BULK)
            elif now - self._pinged >= policy.ping_every:
                self._pinged = now
                acts.append(Act.PING)
        return acts

    def _forgive(self, now: float) -> None:
        """A tick that comes late was kept from coming, and so was whatever the peer sent meanwhile."""
        late = now - self._ticked - self.period(self._policy)
        self._ticked = now
        if late > self.period(self._policy):
            self._heard += late
            self._heard_control += late
            self._heard = min(self._heard, now)
            self._heard_control = min(self._heard_control, now)
            if self._disconnected is not None:
                self._disconnected = min(now, self._disconnected + late)
