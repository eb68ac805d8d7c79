"""How a request's last owner takes over: at once, or after catching up. Pure numbers in, a choice with its
reason out.

One-shot hands over the whole rest of the log: the relay is free at once, the client sees main decode's
extend as one stall. Catch-up lets the relay go on while main decode extends over what it has, round by
round, until little is left.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shared.policy.config import RouterPolicy


class CutMode(enum.StrEnum):
    NONE = "none"
    ONE_SHOT = "one_shot"
    CATCH_UP = "catch_up"


@dataclass(frozen=True, slots=True)
class OwnerLoad:
    """A decoder as its last report shows it, own placements since then included."""

    running: int
    queued: int
    max_running: int
    free_blocks: int
    pool_blocks: int

    @property
    def has_room(self) -> bool:
        """Whether it can afford to hold a request longer than it must."""
        return (
            self.queued == 0
            and 4 * self.running < 3 * self.max_running
            and 8 * self.free_blocks > self.pool_blocks
        )


@dataclass(frozen=True, slots=True)
class CutChoice:
    mode: CutMode
    reason: str
    patient: bool = False  # the relay has room: the cut may wait while main decode takes others over


def cut_mode(
    policy: RouterPolicy, backlog: int, relay: OwnerLoad, main_rate: float, relay_rate: float
) -> CutChoice:
    """How to cut from a relay that runs.

    `backlog` is the ids that main decode has not extended over; rates are tokens/s of one sequence: main
    decode's extend and the relay's decode.
    """
    if backlog <= policy.catch_up_backlog:
        reason = f"backlog {backlog} <= {policy.catch_up_backlog}"
        return CutChoice(CutMode.ONE_SHOT, reason, patient=relay.has_room)
    if policy.catch_up_rounds <= 0:
        return CutChoice(CutMode.ONE_SHOT, "catch-up is off")
    if not relay.has_room:
        return CutChoice(CutMode.ONE_SHOT, "relay is busy")
    if main_rate <= 2 * relay_rate:
        return CutChoice(
            CutMode.ONE_SHOT, f"main extends {main_rate:.0f} tok/s, relay decodes {relay_rate:.0f}"
        )
    reason = f"backlog {backlog} > {policy.catch_up_backlog}, relay has room"
    return CutChoice(CutMode.CATCH_UP, reason, patient=True)


def caught_up(policy: RouterPolicy, backlog: int, rounds: int) -> bool:
    """Whether a catch-up cut is due after `rounds` answered rounds."""
    return backlog <= policy.catch_up_backlog or rounds >= policy.catch_up_rounds
