"""Conversations that a later request may go on from, by the id of their last answer. Soft state: pure,
bounded, `now` comes in.

Each tenant sees its own alone. An answer holds what came before it by reference: memory is counted once, for
as long as anything needs it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from services.router.front.openai import ChatMessage

_OVERHEAD = 1024  # bytes of objects beside an answer's JSON and its messages


@dataclass(slots=True)
class Kept:
    """One answer, and the messages that it added to the conversation."""

    before: Kept | None
    messages: Sequence[ChatMessage]
    answer: bytes
    """Its JSON, as the client got it."""
    used: float
    size: int
    holders: int = 1
    """The table, and the answers that go on from it."""

    def conversation(self) -> list[ChatMessage]:
        """All messages up to this answer."""
        parts: list[Sequence[ChatMessage]] = []
        one: Kept | None = self
        while one is not None:
            parts.append(one.messages)
            one = one.before
        return [message for part in reversed(parts) for message in part]


class ResponseMemory:
    """The answers of all tenants."""

    def __init__(self, *, max_bytes: int, ttl: float) -> None:
        """`ttl`: seconds an answer is kept after its last use."""
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._tenants: dict[str, OrderedDict[str, Kept]] = {}  # least recently used first
        self._held: dict[str, int] = {}  # bytes by tenant, those that only an answer still holds included
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def find(self, now: float, tenant: str, name: str) -> Kept | None:
        """An answer of this tenant, if it is kept."""
        self._expire(now)
        table = self._tenants.get(tenant, OrderedDict())
        kept = table.get(name)
        if kept is not None:
            kept.used = now
            table.move_to_end(name)
        return kept

    def keep(
        self,
        now: float,
        tenant: str,
        name: str,
        before: Kept | None,
        messages: Sequence[ChatMessage],
        answer: bytes,
    ) -> None:
        """Keep an answer. `messages`: what it added to `before`, its own message last."""
        self._expire(now)
        size = _OVERHEAD + len(answer) + len(msgspec.json.encode(messages))
        if before is not None:
            self._hold(tenant, before)
        table = self._tenants.setdefault(tenant, OrderedDict())
        table[name] = Kept(before, tuple(messages), answer, now, size)
        self._count(tenant, size)
        while self.bytes > self._max_bytes:
            self._drop_oldest(max(self._tenants, key=lambda one: self._held.get(one, 0)))

    def drop(self, now: float, tenant: str, name: str) -> bool:
        """Forget an answer; what goes on from it stays. False: it is not kept."""
        self._expire(now)
        kept = self._tenants.get(tenant, OrderedDict()).pop(name, None)
        if kept is not None:
            self._release(tenant, kept)
        return kept is not None

    def _expire(self, now: float) -> None:
        for tenant, table in list(self._tenants.items()):
            while table and now - next(iter(table.values())).used >= self._ttl:
                self._drop_oldest(tenant)

    def _drop_oldest(self, tenant: str) -> None:
        _, kept = self._tenants[tenant].popitem(last=False)
        self._release(tenant, kept)

    def _hold(self, tenant: str, kept: Kept) -> None:
        """One more goes on from an answer, which may have been given up since that began."""
        one: Kept | None = kept
        while one is not None:
            one.holders += 1
            if one.holders > 1:
                return
            self._count(tenant, one.size)
            one = one.before

    def _release(self, tenant: str, kept: Kept) -> None:
        one: Kept | None = kept
        while one is not None:
            one.holders -= 1
            if one.holders:
                return
            self._count(tenant, -one.size)
            one = one.before

    def _count(self, tenant: str, size: int) -> None:
        self.bytes += size
        self._held[tenant] = self._held.get(tenant, 0) + size
        if not self._tenants.get(tenant) and not self._held[tenant]:
            self._tenants.pop(tenant, None)
            del self._held[tenant]
