"""What a decoder knows of a request's log: a prefix of it, and fed runs that start past the prefix's end
(I1).
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.errors import Divergence, ProtocolError
from shared.wire.messages import Feed


class Known:
    """Ids from position 0 on. Runs that leave a gap wait, at most `most_held` ids of them."""

    def __init__(self, ids: Sequence[int], most_held: int) -> None:
        self.ids = list(ids)
        self._most_held = most_held
        self._held: list[tuple[Feed, list[int]]] = []

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def held(self) -> int:
        """Ids that wait for a gap to close."""
        return sum(len(ids) for _, ids in self._held)

    def merge(self, start: int, ids: Sequence[int]) -> int:
        """Append the part of a run that is new; how many ids that was.

        Raises Divergence where the overlap differs. The run may not leave a gap.
        """
        if start > len(self.ids):
            raise ProtocolError(f"a run at {start} leaves a gap after {len(self.ids)} known ids")
        overlap = min(len(self.ids) - start, len(ids))
        if self.ids[start : start + overlap] != list(ids[:overlap]):
            raise Divergence(f"a run at {start} differs from the {overlap} ids known there")
        self.ids.extend(ids[overlap:])
        return len(ids) - overlap

    def hold(self, feed: Feed, ids: list[int]) -> None:
        """Keep a Feed whose ids start past the end. Raises ProtocolError where too much would wait."""
        if self.held + len(ids) > self._most_held:
            waiting = self.held + len(ids)
            raise ProtocolError(
                f"{waiting} fed ids wait for a gap at {len(self.ids)}; at most {self._most_held} may"
            )
        self._held.append((feed, ids))

    def ready(self) -> tuple[Feed, list[int]] | None:
        """The next held Feed that no gap keeps back, in the order of arrival."""
        for at, (feed, _) in enumerate(self._held):
            if feed.start <= len(self.ids):
                return self._held.pop(at)
        return None
