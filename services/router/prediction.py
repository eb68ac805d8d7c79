"""How long answers get, learned from those that ended; and which sessions were singular last. Bounded; no
clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

SAMPLES = 32
"""Last outputs kept per key."""

FEWEST = 4
"""Samples below which a key says nothing and a coarser one is asked."""

QUANTILE = 0.9

Key = tuple[str, bytes]


class OutputPrediction:
    """A high quantile of output lengths per (tenant, session); tenants as a whole where a session is not
    known.
    """

    def __init__(self, most_keys: int) -> None:
        self._most = most_keys
        self._seen: OrderedDict[Key, deque[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def observe(self, tenant: str, session: bytes, outputs: int) -> None:
        """An answer of `outputs` ids ended normally."""
        for key in {(tenant, session), (tenant, b"")}:
            samples = self._seen.get(key)
            if samples is None:
                samples = self._seen[key] = deque(maxlen=SAMPLES)
            samples.append(outputs)
            self._seen.move_to_end(key)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def predict(self, tenant: str, session: bytes, max_tokens: int) -> int:
        """Output ids to expect, at most `max_tokens`; that itself where nothing is known."""
        for key in ((tenant, session), (tenant, b"")):
            samples = self._seen.get(key)
            if samples is not None and len(samples) >= FEWEST:
                ordered = sorted(samples)
                return min(max_tokens, ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))])
        return max_tokens


class SingularMemory:
    """Prompts that ended at a relay: a request that goes on from one of them must not do so again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def ended_at_relay(self, hashes: Sequence[bytes]) -> None:
        """A singular request with this chain ended."""
        if hashes:
            self._last[hashes[-1]] = None
            self._last.move_to_end(hashes[-1])
            if len(self._last) > self._most:
                self._last.popitem(last=False)

    def ended_at_main(self, hashes: Sequence[bytes]) -> None:
        """A request with this chain ended normally: its session is main decode's again."""
        for hash_ in self._last.keys() & set(hashes):
            del self._last[hash_]

    def allows(self, hashes: Sequence[bytes]) -> bool:
        """Whether a request with this chain may be singular."""
        return not self._last or self._last.keys().isdisjoint(hashes)
