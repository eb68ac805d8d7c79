"""Requests whose router is silent or lost: they stop after a while, go on when it is back, and end with the
lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.worker.worker_site import Site


class Room(Protocol):
    """A room with requests of routers."""

    def pause(self, router: str) -> None: ...

    def resume(self, router: str) -> None: ...

    def orphan(self, router: str) -> None:
        """The session has ended: what nobody asks for again is to be abandoned."""

    def abandon(self, router: str, keep: int | None) -> None:
        """End the router's orphaned requests; with `keep`, all but those of that incarnation."""


class Orphans:
    """What is known of silent routers."""

    def __init__(self, site: Site, rooms: Sequence[Room]) -> None:
        self._site = site
        self._rooms = rooms

    def on_suspect(self, now: float, router: str, suspect: bool) -> None:
        """Silent for `suspect_after`, or back."""
        if suspect:
            self._silent(now - self._site.link.suspect_after, router)
        else:
            self._back(router)

    def on_lost(self, now: float, router: str) -> None:
        """Its session has ended."""
        for room in self._rooms:
            room.orphan(router)
        self._site.timers.clear(("orphan_unasked", router))
        self._silent(now, router)

    def on_session(self, router: str, incarnation: int) -> None:
        """A new session: another incarnation's requests are dead; the same one has to ask for its own
        again.
        """
        for room in self._rooms:
            room.abandon(router, incarnation)
        end = self._site.timers.deadline(("orphan_end", router))
        if end is not None:
            self._site.timers.set(("orphan_unasked", router), end)
        for room in self._rooms:
            room.pause(router)  # it may be back before they were: what nobody asks for stays so
        self._back(router)

    def _silent(self, since: float, router: str) -> None:
        policy = self._site.policy
        self._site.timers.sooner(("orphan_pause", router), since + policy.orphan_pause)
        self._site.timers.sooner(("orphan_end", router), since + policy.orphan_lease)

    def _back(self, router: str) -> None:
        self._site.timers.clear(("orphan_pause", router))
        self._site.timers.clear(("orphan_end", router))
        for room in self._rooms:
            room.resume(router)

    def on_pause_due(self, router: str) -> None:
        self._site.count("orphan_pauses_total")
        for room in self._rooms:
            room.pause(router)

    def on_end_due(self, router: str) -> None:
        """It has been silent, or lost, for the whole lease."""
        for room in self._rooms:
            room.orphan(router)
        self.on_unasked_due(router)

    def on_unasked_due(self, router: str) -> None:
        """What was lost with its session and not asked for since ends."""
        self._site.count("orphan_ends_total")
        for room in self._rooms:
            room.abandon(router, None)
