"""Bulk connections in virtual time: chunks are pulled at the pace of their line, and land in block memory.

Bytes behave as on a socket: a chunk's memory is read when its last byte leaves, and written at the receiver
when its last byte arrives, so a block that is reused too early shows as damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.simulation.nodes import Debt, Lane, Line, Link, Node
from shared.policy.line_share import ShareHeld
from shared.wire.messages import LineShare

if TYPE_CHECKING:
    from benchmarks.simulation.sim import Sim


class Lanes:
    """All lanes of one simulation; `chunk`: bytes of a chunk at most."""

    def __init__(self, sim: Sim, chunk: int) -> None:
        self._sim = sim
        self._chunk = chunk

    def granted(self, line: Line, router: str, sender: str, share: LineShare) -> None:
        """A sender has heard what part of a line is its own: what it owes is paid at that rate from now."""
        now = self._sim.now
        held = line.shares.setdefault(sender, ShareHeld())
        ttl = share.ttl_ms / 1e3
        held.grant(now, router, share.seq, share.rate, ttl, share.senders, share.oldest)
        debt = line.debts.get(sender)
        if debt is None:
            return
        debt.pay(now, held.rate(now, line.rate))
        for link in self._sim.links.values():
            for lane in link.lanes:
                waits = not lane.asleep and lane.sending is None
                if link.line is line and link.up and waits and lane.source.name == sender:
                    self._look(link, lane)

    def wake(self, link: Link, node: Node) -> None:
        """A node has something for the other end."""
        for lane in link.lanes:
            if lane.source is node:
                self.pump(link, lane)

    def pump(self, link: Link, lane: Lane) -> None:
        """The socket wants bytes, as soon as the line has room."""
        if not lane.asleep or not link.up:
            return
        lane.asleep = False
        self._look(link, lane)

    def _look(self, link: Link, lane: Lane) -> None:
        """Pull when the line, and the sender's share of it, can take a chunk as things stand now."""
        lane.turn += 1
        self._sim.at(self._room(link.line, lane), self._pull, link, lane, link.era, lane.turn)

    def broken(self, link: Link) -> None:
        """The connections of a link are gone, and all that was on them."""
        for lane in link.lanes:
            source, target = lane.source.bulk, lane.target.bulk
            sending, lane.sending = lane.sending, None
            landing, lane.landing = lane.landing, None
            lane.flying.clear()
            lane.arrived = 0
            lane.asleep = True
            if sending is not None and lane.source.alive and source is not None:
                source.chunk_written(self._sim.now, lane.target.name, sending.key, False)
                self._sim.perform(lane.source)
            if landing is not None and landing[1] is not None and lane.target.alive and target is not None:
                target.on_chunk_broken(lane.source.name, landing[0])
                self._sim.perform(lane.target)

    def _room(self, line: Line, lane: Lane) -> float:
        """When the line, and the sender's share of it, can take the next chunk."""
        free = line.free.get(lane.source.datacenter, 0.0)
        debt = line.debts.get(lane.source.name) if line.debts else None
        return free if debt is None else max(free, debt.over)

    def _pull(self, link: Link, lane: Lane, era: int, turn: int) -> None:
        source, sim = lane.source.bulk, self._sim
        if link.era != era or lane.turn != turn or source is None or not lane.source.alive:
            return
        line, side = link.line, lane.source.datacenter
        if self._room(line, lane) > sim.now:
            self._look(link, lane)
            return
        chunk = source.next_chunk(sim.now, lane.target.name, self._chunk)
        sim.perform(lane.source)
        if chunk is None:
            lane.asleep = True
            return
        lane.sending = chunk
        size = len(chunk.data)
        took = size / line.rate if line.rate else 1e-5
        line.free[side] = sim.now + took
        line.carried[side] += size
        held = line.shares.get(lane.source.name) if line.shares else None
        if held is not None:
            debt = line.debts.setdefault(lane.source.name, Debt())
            debt.pay(sim.now, held.rate(sim.now, line.rate))
            debt.left += size
        linger = sim.random.random() * line.linger
        sim.at(sim.now + took + linger, self._left, link, lane, era)

    def _left(self, link: Link, lane: Lane, era: int) -> None:
        """The last byte is with the kernel."""
        source, chunk, sim = lane.source.bulk, lane.sending, self._sim
        if link.era != era or source is None or chunk is None or not lane.source.alive:
            return
        data = bytearray(chunk.data)
        sim.damage(chunk.header, data)
        lane.sending = None
        lane.flying.append((chunk.header, data))
        source.chunk_written(sim.now, lane.target.name, chunk.key, True)
        sim.perform(lane.source)
        delay = link.line.delay + sim.random.random() * link.line.jitter
        lane.arrives = max(lane.arrives, sim.now + delay)
        sim.at(lane.arrives, self._begin, link, lane, era)
        lane.asleep = True
        self.pump(link, lane)

    def _begin(self, link: Link, lane: Lane, era: int) -> None:
        """The first byte arrives: memory is asked for."""
        target = lane.target.bulk
        if link.era != era or target is None or not lane.target.alive:
            return
        if lane.landing is not None:
            lane.arrived += 1
            return
        header = lane.flying[0][0]
        lane.landing = (header, target.chunk_buffer(lane.source.name, header))
        self._sim.perform(lane.target)
        took = self._sim.random.random() * link.line.landing
        self._sim.at(self._sim.now + took, self._end, link, lane, era)

    def _end(self, link: Link, lane: Lane, era: int) -> None:
        """The last byte has arrived."""
        target = lane.target.bulk
        if link.era != era or target is None or lane.landing is None or not lane.target.alive:
            return
        (header, buffer), lane.landing = lane.landing, None
        data = lane.flying.popleft()[1]
        if buffer is not None:
            buffer[:] = data
        view = memoryview(data) if buffer is None else buffer
        target.on_chunk(self._sim.now, lane.source.name, header, view, buffer is not None)
        self._sim.perform(lane.target)
        if lane.arrived and link.era == era:
            lane.arrived -= 1
            self._begin(link, lane, era)
