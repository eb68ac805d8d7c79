"""Who makes the blocks that are sent: how far a request is at this worker, whichever room has it."""

from __future__ import annotations

import enum
from typing import Protocol

from shared.wire.messages import Rid


class SourceState(enum.Enum):
    """How far the request of an Attach is at this sender."""

    QUEUED = "queued"  # nothing computed yet
    RUNNING = "running"  # blocks come into being
    DONE = "done"  # all blocks exist
    GONE = "gone"  # not known here (any more): what is cached can still be sent


MAY_COME = {
    SourceState.QUEUED: True,
    SourceState.RUNNING: True,
    SourceState.DONE: False,
    SourceState.GONE: False,
}
"""Whether a block that does not exist yet may still come into being."""


class Source(Protocol):
    """A room with requests."""

    def state(self, rid: Rid) -> SourceState: ...

    def hashes(self, rid: Rid) -> list[bytes]:
        """Chain hashes of the request's full blocks; [] where it is not known here."""

    def term(self, rid: Rid) -> int:
        """The newest term that named the request here; 0 where it is not known."""

    def prompt_len(self, rid: Rid) -> int:
        """Its prompt's tokens; 0 where it is not known."""


class Sources:
    """The rooms of one worker, asked in turn."""

    def __init__(self) -> None:
        self._rooms: list[Source] = []

    def join(self, room: Source) -> None:
        self._rooms.append(room)

    def state(self, rid: Rid) -> SourceState:
        for room in self._rooms:
            state = room.state(rid)
            if state is not SourceState.GONE:
                return state
        return SourceState.GONE

    def hashes(self, rid: Rid) -> list[bytes]:
        for room in self._rooms:
            if hashes := room.hashes(rid):
                return hashes
        return []

    def term(self, rid: Rid) -> int:
        return max((room.term(rid) for room in self._rooms), default=0)

    def prompt_len(self, rid: Rid) -> int:
        return max((room.prompt_len(rid) for room in self._rooms), default=0)
