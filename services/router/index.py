"""Which worker holds which blocks. Soft state and a hint: the workers' own answers decide.

Each worker has a mirror of its pool; a gap in its events, or a new session, asks for a snapshot. Beside
what was reported stand the blocks that the router's own placements will bring (`expect`), until they are
settled. Memory is bounded by the pools' announced sizes and by `most_expected`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from services.router.mirror import Mirror, split
from shared.kv.hashing import HASH_BYTES, set_digest
from shared.wire.messages import KvEvents, Snapshot, SnapshotDigest


class Match(NamedTuple):
    """Leading blocks of a chain at one worker."""

    have: int  # as reported
    expected: int  # further ones that own placements will bring


NOTHING = Match(0, 0)


class Index:
    """Mirrors by node, and expected blocks by the key of the placement that brings them."""

    def __init__(self, most_expected: int) -> None:
        self._mirrors: dict[str, Mirror] = {}
        self._expected: dict[str, dict[bytes, int]] = {}
        self._placements: dict[Hashable, tuple[str, Sequence[bytes]]] = {}
        self._most_expected = most_expected
        self._expected_blocks = 0
        self.gaps = 0
        self.expected_refused = 0

    # --- sessions and events --------------------------------------------------------------------------------

    def opened(self, node: str) -> None:
        """A new session: whatever was known of an earlier one is void."""
        self.lost(node)
        self._mirrors[node] = Mirror(0)

    def lost(self, node: str) -> None:
        """The worker is gone, and its cache with it."""
        self._mirrors.pop(node, None)
        for key in [key for key, (where, _) in self._placements.items() if where == node]:
            self.settle(key)

    def sized(self, node: str, pool_blocks: int) -> bool:
        """The worker's pool was announced. True: ask it for a snapshot."""
        mirror = self._mirrors.get(node)
        if mirror is None:
            return False
        mirror.most = pool_blocks
        return self._ask(mirror) if mirror.seq is None else False

    def on_events(self, node: str, events: KvEvents, payload: bytes) -> bool:
        """Apply one message. True: ask the worker for a snapshot."""
        mirror = self._mirrors.get(node)
        if mirror is None or mirror.seq is None or events.seq <= mirror.seq:
            return False
        whole = len(payload) == (events.stored + events.removed) * HASH_BYTES
        if events.seq != mirror.seq + 1 or not whole:
            self.gaps += 1
            mirror.clear()
            mirror.seq = None
            return self._ask(mirror)
        hashes = split(payload)
        if events.cleared:
            mirror.clear()
        mirror.store(hashes[: events.stored])
        mirror.remove(hashes[events.stored :])
        mirror.seq = events.seq
        return False

    def on_snapshot(self, node: str, snapshot: Snapshot, payload: bytes) -> None:
        """All that a worker holds; events up to the snapshot's seq are in it. A cut one is ignored."""
        mirror = self._mirrors.get(node)
        if mirror is not None and len(payload) == snapshot.count * HASH_BYTES:
            mirror.replace(snapshot.seq, split(payload))

    def agrees(self, node: str, said: SnapshotDigest) -> bool:
        """Whether a worker's digest of all that it holds is that of what is known of it."""
        mirror = self._mirrors.get(node)
        if mirror is None or mirror.seq != said.seq or len(mirror) != said.count:
            return False
        return set_digest(mirror.stored) == said.digest

    def mistrust(self, node: str) -> bool:
        """What is known of a worker was found wrong. True: ask it for a snapshot (none is on its way)."""
        mirror = self._mirrors.get(node)
        return mirror is not None and self._ask(mirror)

    def _ask(self, mirror: Mirror) -> bool:
        asked, mirror.asked = mirror.asked, True
        return not asked

    # --- own placements -------------------------------------------------------------------------------------

    def expect(self, key: Hashable, node: str, hashes: Sequence[bytes]) -> None:
        """A placement will bring these blocks to a worker. One `key` counts once: again replaces."""
        self.settle(key)
        if node not in self._mirrors or not hashes:
            return
        if self._expected_blocks + len(hashes) > self._most_expected:
            self.expected_refused += 1
            return
        expected = self._expected.setdefault(node, {})
        for hash_ in hashes:
            expected[hash_] = expected.get(hash_, 0) + 1
        self._placements[key] = (node, hashes)
        self._expected_blocks += len(hashes)

    def settle(self, key: Hashable) -> None:
        """The placement has landed, or was released: what it brought is reported by events, the rest will
        not come.
        """
        placement = self._placements.pop(key, None)
        if placement is None:
            return
        node, hashes = placement
        expected = self._expected[node]
        for hash_ in hashes:
            count = expected[hash_] - 1
            if count:
                expected[hash_] = count
            else:
                del expected[hash_]
        if not expected:
            del self._expected[node]
        self._expected_blocks -= len(hashes)

    # --- look-up --------------------------------------------------------------------------------------------

    def match(self, node: str, hashes: Sequence[bytes]) -> Match:
        """Leading blocks of a chain at one worker."""
        mirror = self._mirrors.get(node)
        if mirror is None:
            return NOTHING
        have = mirror.leading(hashes)
        expected = self._expected.get(node)
        if not expected or have == len(hashes):
            return Match(have, 0)
        stored = mirror.stored
        low, high = have, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in expected or hashes[middle - 1] in stored:
                low = middle
            else:
                high = middle - 1
        return Match(have, low - have)

    def matches(self, nodes: Iterable[str], hashes: Sequence[bytes]) -> dict[str, Match]:
        """The same for several workers."""
        return {node: self.match(node, hashes) for node in nodes}

    @property
    def blocks(self) -> int:
        """Reported blocks at all workers."""
        return sum(len(mirror) for mirror in self._mirrors.values())

    @property
    def expected_blocks(self) -> int:
        return self._expected_blocks

    def hashes(self, node: str) -> frozenset[bytes]:
        """What is known of one worker: for comparison with its own pool."""
        mirror = self._mirrors.get(node)
        return frozenset() if mirror is None else frozenset(mirror.stored)
