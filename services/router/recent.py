"""The ids of sessions that were active lately, for re-warming a main decode that lost its cache. Bounded;
no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from services.router.worker import PoolKey

MOST_TOKENS = 1 << 24
"""Ids kept in all (4 bytes each)."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a session had in its last turn, prompt and answer."""

    pool: PoolKey
    salt: bytes
    ids: bytes  # packed
    hashes: tuple[bytes, ...]  # of its full blocks
    main: str  # the main decode that served it


class RecentSessions:
    """Latest last. A turn takes the place of the one it goes on from."""

    def __init__(self, most: int, most_tokens: int = MOST_TOKENS) -> None:
        self._most = most
        self._most_tokens = most_tokens
        self._tokens = 0
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()  # by the last block's hash

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def tokens(self) -> int:
        return self._tokens

    def remember(self, session: Session) -> None:
        """A turn has ended. Sessions without a full block are not worth it."""
        if not session.hashes:
            return
        for earlier in self._sessions.keys() & set(session.hashes):
            self._forget(earlier)
        self._sessions[session.hashes[-1]] = session
        self._tokens += len(session.ids) // 4
        while len(self._sessions) > self._most or (self._tokens > self._most_tokens and self._sessions):
            self._forget(next(iter(self._sessions)))

    def of(self, main: str) -> list[Session]:
        """Sessions that a main decode served last, the most recent first."""
        return [session for session in reversed(self._sessions.values()) if session.main == main]

    def _forget(self, key: bytes) -> None:
        self._tokens -= len(self._sessions.pop(key).ids) // 4
