"""The decoder's requests in the engine: which sequence is whose, and when it may compute.

Passes ids, blocks and pauses on; what a request is to do is decided elsewhere.
"""

from __future__ import annotations

from shared.engine.sequence import Goal, SequenceSpec
from shared.worker.part import Part
from shared.worker.worker_site import Site


class Seats:
    """Sequences of parts. At most one a part."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts: dict[int, Part] = {}
        self._paused: set[str] = set()  # routers that are silent

    def get(self, seq: int) -> Part | None:
        """Whose sequence it is."""
        return self._parts.get(seq)

    def all(self) -> list[Part]:
        return list(self._parts.values())

    def compute(self, now: float, part: Part, goal: Goal) -> None:
        """Have the engine compute over all that the part knows of the log.

        Raises InvalidRequest where that is longer than the context.
        """
        engine, ids = self._site.engine, part.known.ids
        if part.seq is not None:
            engine.feed(part.seq, ids[part.given :])
            engine.set_goal(part.seq, goal)
            part.given = len(ids)
            return
        part.seq = engine.add(self._spec(part, goal), now)
        part.blocks = []  # their pins are the engine's now
        part.given = len(ids)
        self._parts[part.seq] = part
        if part.orphan or part.ask.router in self._paused:
            engine.pause(part.seq)

    def _spec(self, part: Part, goal: Goal) -> SequenceSpec:
        ask = part.ask
        return SequenceSpec(
            ids=list(part.known.ids),
            prompt_len=ask.prompt_len,
            params=ask.params,
            root=ask.root,
            hashes=list(ask.hashes),
            blocks=list(part.blocks),
            goal=goal,
            priority=ask.priority,
            promise=part.growth,
        )

    def caught_up(self, part: Part) -> bool:
        """Whether the KV of all but the last known id is computed."""
        return part.seq is not None and self._site.engine.computed(part.seq) >= part.given - 1

    def leave(self, part: Part) -> None:
        """End the part's sequence, if it has one, and take back what is promised to its growth."""
        if part.seq is not None:
            del self._parts[part.seq]
            self._site.engine.end(part.seq)
            part.seq = None
        self._site.pool.unpromise(part.growth)

    def pause(self, router: str) -> None:
        """Compute nothing of a silent router's requests; keep everything."""
        self._paused.add(router)
        for seq, part in self._parts.items():
            if part.ask.router == router:
                self._site.engine.pause(seq)

    def resume(self, router: str) -> None:
        """The router is back."""
        self._paused.discard(router)
        for seq, part in self._parts.items():
            if part.ask.router == router and not part.orphan:
                self._site.engine.resume(seq)

    def adopt(self, part: Part) -> None:
        """The router has asked for an orphan again."""
        part.orphan = False
        if part.seq is not None and part.ask.router not in self._paused:
            self._site.engine.resume(part.seq)
