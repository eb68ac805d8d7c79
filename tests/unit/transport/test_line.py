"""Lines: whose turn it is, how fast, and what is measured."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from benchmarks.wan.proxy import WanProxy
from shared.policy.config import LinePolicy, LinkPolicy
from shared.transport.line import Line, LineSpec
from shared.transport.tcp import TcpInfo
from shared.wire import messages as m
from shared.wire.messages import Role
from tests.support.recording_core import chunk_of
from tests.support.samples import RID
from tests.support.wired import QUICK, Node, joined, wired


class Destination:
    """Sends chunks of one size until its bytes are gone or its socket is full."""

    def __init__(self, name: str, left: int, log: list[str], size: int = 100_000) -> None:
        self.left = left
        self.full = False
        self.acked = 0
        self.waiting = 0
        self.pushes: list[int] = []  # chunks that each handed on
        self._name = name
        self._log = log
        self._size = size

    def send_one(self, now: float, limit: int) -> int:
        size = 0 if self.full else min(self._size, self.left, limit)
        self.left -= size
        if size:
            self._log.append(self._name)
            self.waiting += 1
        return size

    def push(self) -> None:
        if self.waiting:
            self.pushes.append(self.waiting)
        self.waiting = 0

    def blocked(self) -> bool:
        return self.full and self.left > 0

    def held(self) -> bool:
        return False

    def infos(self) -> list[TcpInfo]:
        return [TcpInfo(0.02, 0.02, 0, self.acked, int(self.full))]

    def keep_unsent(self, size: int) -> None:
        self.unsent = size


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(spec: LineSpec | None, clock: Clock | None = None) -> Line:
    return Line("wan", spec, LinePolicy(), LinkPolicy(), clock or Clock(), lambda: None)


async def test_destinations_take_turns_chunk_by_chunk() -> None:
    log: list[str] = []
    line = make(None)
    one, two = Destination("one", 500_000, log), Destination("two", 300_000, log)
    for destination in (one, two):
        line.join(destination)
        line.wake(destination)
    line.turn(100.0)
    assert log == ["one", "two"] * 3 + ["one"] * 2


async def test_what_a_turn_has_taken_leaves_together_where_nothing_is_held_back() -> None:
    line = make(None)
    one, two = Destination("one", 500_000, []), Destination("two", 40 << 20, [], size=256 << 10)
    for destination in (one, two):
        line.join(destination)
        line.wake(destination)
    line.turn(100.0)
    line.close()
    assert (one.waiting, two.waiting) == (0, 0)
    assert one.pushes == [5]
    assert len(two.pushes) == 1  # the turn was over before its bytes were


async def test_on_a_line_each_chunk_leaves_before_the_next_is_taken() -> None:
    line = make(LineSpec("wan", ("a", "b"), rate=100e6))
    one = Destination("one", 500_000, [])
    line.join(one)
    line.wake(one)
    line.turn(100.0)
    line.close()
    assert set(one.pushes) == {1}


async def test_a_full_socket_leaves_the_line_to_others_until_it_wakes() -> None:
    log: list[str] = []
    line = make(None)
    one, two = Destination("one", 200_000, log), Destination("two", 200_000, log)
    one.full = True
    for destination in (one, two):
        line.join(destination)
        line.wake(destination)
    line.turn(100.0)
    assert log == ["two"] * 2
    assert line.view(100.0).backlog
    one.full = False
    line.wake(one)
    line.turn(100.1)
    assert log == ["two"] * 2 + ["one"] * 2
    assert not line.view(100.1).backlog


async def test_a_cap_holds_in_virtual_time() -> None:
    log: list[str] = []
    clock = Clock()
    line = make(LineSpec("wan", ("a", "b"), rate=10e6), clock)
    one = Destination("one", 10**9, log)
    line.join(one)
    line.wake(one)
    while clock.now < 102.0:
        line.turn(clock.now)
        clock.now += 0.001
    line.close()
    assert 10**9 - one.left == pytest.approx(20e6, rel=0.02)


async def test_a_cap_is_kept_by_a_loop_that_comes_late() -> None:
    """Else a busy machine has a slower line."""
    log: list[str] = []
    clock = Clock()
    line = make(LineSpec("wan", ("a", "b"), rate=100e6), clock)
    one = Destination("one", 10**9, log)
    line.join(one)
    line.wake(one)
    for late in range(200):
        line.turn(clock.now)
        clock.now += 0.0175 if late % 2 else 0.0025
    line.close()
    assert 10**9 - one.left == pytest.approx(200e6, rel=0.02)


async def test_a_share_holds_and_control_bytes_count() -> None:
    log: list[str] = []
    clock = Clock()
    line = make(LineSpec("wan", ("a", "b"), rate=10e6), clock)
    line.shares.grant(clock.now, "r1", 1, 2e6, ttl=60.0, senders=3)
    one = Destination("one", 10**9, log)
    line.join(one)
    line.wake(one)
    while clock.now < 104.0:
        line.turn(clock.now)
        line.charge(clock.now, 1000)  # 1 MB/s
        clock.now += 0.001
    line.close()
    assert 10**9 - one.left == pytest.approx(4e6, rel=0.05)


async def test_chunks_shrink_with_the_line() -> None:
    assert make(None).chunk_limit() == 256 << 10
    assert make(LineSpec("wan", ("a", "b"), rate=2.5e6)).chunk_limit() == 24 << 10


async def test_samples_count_only_while_a_backlog_exists() -> None:
    log: list[str] = []
    clock = Clock()
    line = make(LineSpec("wan", ("a", "b"), rtt=0.02), clock)
    one = Destination("one", 10**9, log)
    line.join(one)
    one.full = True
    for _ in range(20):
        line.wake(one)
        line.turn(clock.now)
        clock.now += 0.06
        one.acked += 300_000  # 5 MB/s
    busy = line.view(clock.now).rate
    one.left, one.full = 0, False
    for _ in range(20):
        line.wake(one)
        line.turn(clock.now)
        clock.now += 0.06
        one.acked += 1_000_000
    assert busy == pytest.approx(5e6)
    assert line.view(clock.now).rate == busy


async def test_its_own_pace_is_no_reason_to_slow_down() -> None:
    """Bytes that waited for the bucket, while the socket took all it was given, say nothing of the line."""
    log: list[str] = []
    clock = Clock()
    line = make(LineSpec("wan", ("a", "b"), rate=5e6, rtt=0.001), clock)
    one = Destination("one", 10**9, log)
    line.join(one)
    for step in range(300):
        line.wake(one)
        line.turn(clock.now)
        clock.now += 0.06
        one.acked += 500 * (step % 9)  # far below the rate
    assert line.view(clock.now).rate == 5e6


async def test_a_sender_that_left_is_not_asked_again() -> None:
    log: list[str] = []
    line = make(None)
    one = Destination("one", 200_000, log)
    line.join(one)
    line.wake(one)
    line.leave(one)
    line.turn(100.0)
    assert log == []


async def test_after_many_bytes_the_loop_gets_its_turn() -> None:
    log: list[str] = []
    line = make(None)
    one = Destination("one", 100 << 20, log, size=1 << 18)
    line.join(one)
    line.wake(one)
    line.turn(100.0)
    assert 0 < one.left < 100 << 20
    for _ in range(20):
        await asyncio.sleep(0)
    assert one.left == 0


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_an_uncapped_line_is_measured_and_urgent_messages_pass_the_bulk() -> None:
    spec = LineSpec("wan", ("a", "b"))
    p = Node("p", lines=[spec])
    md = Node("md", Role.MAIN, datacenter="b", lines=[spec])
    rate = 5e6
    async with wired(p, md), WanProxy(rate_mbit=rate * 8 / 1e6, rtt_ms=20) as wan:
        port = await wan.route("127.0.0.1", await md.listen())
        await joined(p, md, port=port, bulk=1)
        data = memoryview(os.urandom(1 << 18))
        count = 32  # 8 MB: 1.7 s
        p.offer("md", *(chunk_of(data, key=key) for key in range(count)))
        began = time.monotonic()
        waits = []
        while len(md.core.chunks) < count:
            seen = len(md.core.messages)
            sent = time.monotonic()
            p.send("md", m.Resume(RID, seen))
            await md.core.until(lambda seen=seen: len(md.core.messages) > seen)  # type: ignore[misc]
            waits.append(time.monotonic() - sent)
            await asyncio.sleep(0.05)
        took = time.monotonic() - began
        view = p.endpoint.line_for("md")
        assert view is not None
        assert took < 2.5 * count * len(data) / rate
        assert view.rate == pytest.approx(rate, rel=0.3)
        assert sorted(waits)[len(waits) // 2] < 0.25


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_two_connections_share_one_bucket() -> None:
    spec = LineSpec("wan", ("a", "b"), rate=8e6)
    p = Node("p", lines=[spec], policy=QUICK)
    md = Node("md", Role.MAIN, datacenter="b", lines=[spec], policy=QUICK)
    async with wired(p, md):
        await joined(p, md, bulk=3)
        data = memoryview(os.urandom(1 << 16))
        began = time.monotonic()
        p.offer("md", *(chunk_of(data, key=key) for key in range(64)))  # 4 MB at 8 MB/s
        await md.core.until(lambda: len(md.core.chunks) == 64)
        took = time.monotonic() - began
        assert 0.45 < took < 1.5
