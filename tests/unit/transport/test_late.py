"""A connection whose bytes are not acknowledged in time is given no more, on a line in virtual time."""

from __future__ import annotations

from collections import Counter, deque
from typing import cast

import pytest

from shared.policy.config import LinePolicy, LinkPolicy
from shared.policy.flight import Flight
from shared.transport.line import Line, LineSpec
from shared.transport.peer import Peer
from shared.transport.tcp import Stream, TcpInfo
from shared.wire.handshake import Agreed
from shared.wire.messages import Role
from shared.wire.port import OutChunk, PeerInfo
from tests.support.recording_core import chunk_of

RATE, RTT = 25e6, 0.04
CHUNK = 256 << 10
STEP = 0.0005


class Source:
    """Always has another chunk."""

    def __init__(self) -> None:
        self._data = memoryview(bytes(CHUNK))

    def next_chunk(self, now: float, node: str, limit: int) -> OutChunk | None:
        return chunk_of(self._data[: min(limit, CHUNK)], key=0)

    def chunk_written(self, node: str, key: int, sent: bool) -> None: ...


class Wire:
    """A kernel whose window never holds anything back, and a line behind it that may fall silent: what it
    takes arrives in its turn, and is acknowledged a round trip later."""

    wants_bytes = True

    def __init__(self) -> None:
        self.now = 0.0
        self.silent = False
        self.given = self.acked = 0
        self.apart = 0
        self.flight = Flight()
        self._free_at = 0.0
        self._coming: deque[tuple[float, int]] = deque()

    def write_chunk(self, head: bytes, data: memoryview, done: object) -> None:
        size = len(head) + len(data)
        self.given += size
        self._free_at = max(self.now, self._free_at) + size / RATE
        if not self.silent:
            self._coming.append((self._free_at + RTT, size))

    def push(self) -> None: ...

    def tune(self, *, unsent: int) -> None: ...

    def outstanding(self) -> int:
        return self.given - self.acked

    def info(self) -> TcpInfo:
        queued = max(0.0, self._free_at - self.now)
        return TcpInfo(RTT + queued, RTT, 0, self.acked + self.apart, 0, self.given, self.apart)

    def arrive(self, now: float) -> None:
        self.now = now
        while self._coming and self._coming[0][0] <= now:
            self.acked += self._coming.popleft()[1]

    def fall_silent(self) -> None:
        self.silent = True
        self._coming.clear()


class Rig:
    """A peer with so many connections to it, and a line that is told of `cap`."""

    def __init__(self, wires: int = 1, cap: float = RATE) -> None:
        self.now = 100.0
        spec = LineSpec("wan", ("a", "b"), rate=cap)
        self.line = Line("wan", spec, LinePolicy(), LinkPolicy(), lambda: self.now, lambda: None)
        info = PeerInfo("md", Role.MAIN, "b", 1)
        source = Source()
        agreed = Agreed(info, 1, False, 0, 0)
        self.peer = Peer(agreed, LinkPolicy(), self.line, source, Counter(), self.now)
        self.wires = [Wire() for _ in range(wires)]
        for index, wire in enumerate(self.wires):
            self.peer.add_bulk(index, cast(Stream, wire))
        self.line.wake(self.peer)

    def run(self, seconds: float) -> int:
        """Bytes that were given meanwhile."""
        before = sum(wire.given for wire in self.wires)
        end = self.now + seconds
        while self.now < end:
            for wire in self.wires:
                wire.arrive(self.now)
            self.line.turn(self.now)  # as its timer would
            self.now += STEP
        return sum(wire.given for wire in self.wires) - before


async def test_a_full_line_is_kept_full() -> None:
    rig = Rig()
    rig.run(1.0)
    assert rig.run(4.0) == pytest.approx(4 * RATE, rel=0.01)
    rig.line.close()


@pytest.mark.parametrize("wires", [1, 4])
async def test_a_silent_line_is_given_no_more_than_a_round_trip_and_a_half(wires: int) -> None:
    """Whatever the kernel's window would take."""
    rig = Rig(wires)
    rig.run(2.0)
    for wire in rig.wires:
        wire.fall_silent()
    rig.run(2.0)
    left = sum(wire.outstanding() for wire in rig.wires)
    assert left <= RATE * (1.5 * RTT + 0.01) + (1 + wires) * CHUNK
    assert left >= RATE * RTT, "it was full"
    assert rig.run(1.0) == 0
    assert rig.peer.held()
    assert rig.line.view(rig.now).backlog
    rig.line.close()


@pytest.mark.parametrize("cap", [1.02, 1.1, 1.5, 5.0])
async def test_a_queue_stays_short_where_the_cap_is_more_than_the_line_carries(cap: float) -> None:
    rig = Rig(cap=cap * RATE)
    rig.run(2.0)
    given = 0
    for _ in range(30):
        given += rig.run(0.1)
        assert rig.wires[0].outstanding() <= RATE * (1.5 * RTT + 0.01) + 3 * CHUNK
    assert given == pytest.approx(3 * RATE, rel=0.03)
    rig.line.close()


async def test_it_goes_on_as_soon_as_bytes_are_acknowledged() -> None:
    rig = Rig()
    rig.run(2.0)
    rig.wires[0].fall_silent()
    rig.run(1.0)
    rig.wires[0].silent = False
    rig.wires[0].acked = rig.wires[0].given
    assert rig.run(1.0) == pytest.approx(RATE, rel=0.03)
    rig.line.close()


async def test_a_connection_that_is_stuck_leaves_the_line_to_the_others() -> None:
    rig = Rig(2)
    rig.run(2.0)
    rig.wires[0].fall_silent()
    rig.run(0.5)
    given = rig.wires[0].given
    assert rig.run(1.0) == pytest.approx(RATE, rel=0.03)
    assert rig.wires[0].given == given
    rig.line.close()


async def test_bytes_that_arrived_behind_a_loss_are_not_late() -> None:
    rig = Rig()
    rig.run(2.0)
    rig.wires[0].fall_silent()
    rig.run(1.0)
    given = rig.wires[0].given
    rig.wires[0].apart = rig.wires[0].outstanding() - 1500
    rig.run(0.01)
    assert rig.wires[0].given > given
    rig.line.close()
