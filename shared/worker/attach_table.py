"""What becomes of a transfer, by how far its request is at the sender: (queued, running, done, gone) x what
happens. Data alone; `kv_out` and `orders` do it, a test compares them with each pair.
"""

from __future__ import annotations

import enum

from shared.worker.sources import SourceState


class AttachEvent(enum.StrEnum):
    ATTACH = "attach"  # the router names a target
    ATTACH_AGAIN = "attach again"  # the same ticket, another class
    RELEASE = "release"
    RELEASE_ALIGN = "release, align"  # the target being a main decode
    TARGET_LOST = "target lost"  # its session's lease is over
    TARGET_RESTARTED = "target restarted"  # a new incarnation in its place
    TARGET_SESSION = "target's session opens"  # it was attached before the two had met
    OTHER_LOST = "other worker lost"
    ROUTER_LOST = "router lost"


class Outcome(enum.StrEnum):
    STREAMS = "blocks leave as they come into being"
    SENDS = "all blocks leave"
    CACHED = "blocks that are cached leave; `Missing` where one is not"
    RECLASSED = "goes on in its new class"
    GOES_ON = "goes on"
    ALIGNS = "goes on as an alignment, up to the prompt's end"
    ENDS = "ends, and its pins with it"
    ENDS_BY_LEASE = "goes on, and ends where the router stays away for `orphan_lease`"
    ENDS_BY_TARGET = "goes on, and ends when its receiver's part ends"


_OPENS = {
    SourceState.QUEUED: Outcome.STREAMS,
    SourceState.RUNNING: Outcome.STREAMS,
    SourceState.DONE: Outcome.SENDS,
    SourceState.GONE: Outcome.CACHED,
}
_ALIKE = {
    AttachEvent.ATTACH_AGAIN: Outcome.RECLASSED,
    AttachEvent.RELEASE: Outcome.ENDS,
    AttachEvent.RELEASE_ALIGN: Outcome.ALIGNS,
    AttachEvent.TARGET_LOST: Outcome.ENDS,
    AttachEvent.TARGET_RESTARTED: Outcome.ENDS,
    AttachEvent.TARGET_SESSION: Outcome.GOES_ON,
    AttachEvent.OTHER_LOST: Outcome.GOES_ON,
    AttachEvent.ROUTER_LOST: Outcome.ENDS_BY_LEASE,
}
ATTACH_TABLE: dict[tuple[SourceState, AttachEvent], Outcome] = {
    **{(state, AttachEvent.ATTACH): outcome for state, outcome in _OPENS.items()},
    **{(state, event): outcome for state in SourceState for event, outcome in _ALIKE.items()},
    (SourceState.GONE, AttachEvent.ROUTER_LOST): Outcome.ENDS_BY_TARGET,
}
