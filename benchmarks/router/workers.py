"""A prefill and a main decode worker that compute nothing: they keep the protocol and answer at once.

Real endpoints on real sockets; a cache is a set of hashes, a transfer is instant, an id comes from a text.
What a request waits for beside them is the router. Knows nothing of clients.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.kv.hashing import chain_hashes, chain_root, unpack_ids
from shared.policy.config import LinkPolicy
from shared.transport.endpoint import Endpoint
from shared.wire import messages as m
from shared.wire.handshake import Identity
from shared.wire.messages import Role
from shared.wire.port import Instruction, PeerInfo, Send

BLOCK = 32
FINGERPRINT, LAYOUT = "instant", b"layout"
CONTEXT = 65_536
_BLOCKS = 200_000
_REPORT_EVERY = 0.5
_LONG = 16 << 10  # bytes of ids


@dataclass
class Fleet:
    """Both workers, and the pace at which ids come: a step a `pace` seconds, one id for each request, while
    `held` ids at most were drawn and not yet seen by their client."""

    text: Sequence[int]
    pace: float = 0.0
    held: int = 1 << 30
    drawn: int = 0
    seen: int = 0
    events: int = 0
    busy: float = 0.0
    """Seconds that the workers themselves have taken for long prompts: hashing them, mostly."""
    hashed: tuple[tuple[bytes, bytes], list[bytes]] = ((b"", b""), [])
    ids: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = itertools.cycle(self.text)
        self.main = _Main(self, "main-0", Role.MAIN)
        self.prefill = _Prefill(self, "prefill-0", Role.PREFILL)
        self._endpoints: list[Endpoint] = []
        self._tasks: list[asyncio.Task[None]] = []

    def saw(self, tokens: int, events: int) -> None:
        """A client has seen so many more, in so many events."""
        self.seen += tokens
        self.events += events

    async def join(self, template: str, host: str, port: int) -> None:
        """Dial the router with both."""
        for core in (self.main, self.prefill):
            datacenter = "b" if core.role is Role.MAIN else "a"
            identity = Identity(
                core.node, core.role, datacenter, core.incarnation, FINGERPRINT, template, LAYOUT
            )
            endpoint = Endpoint(identity, core, LinkPolicy())
            core.perform = endpoint.perform
            endpoint.dial("router-0", host, port)
            self._endpoints.append(endpoint)
        self._tasks = [asyncio.ensure_future(self._report()), asyncio.ensure_future(self._step())]

    async def close(self) -> None:
        """Leave the mesh."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for endpoint in self._endpoints:
            await endpoint.close("over")

    async def _report(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            for core in (self.main, self.prefill):
                core.report()
                core.perform(clock())
            await asyncio.sleep(_REPORT_EVERY)

    async def _step(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self.pace or 0.001)
            if self.main.running and self.drawn - self.seen < self.held:
                self.main.step()
                self.main.perform(clock())


@dataclass
class _Part:
    """One request at main decode."""

    term: int
    length: int
    sampling: m.Sampling
    hashes: Sequence[bytes]


class _Core:
    """What both have in common: the faces that the transport calls."""

    def __init__(self, fleet: Fleet, node: str, role: Role) -> None:
        self.node = node
        self.role = role
        self.incarnation = 7 + (role is Role.MAIN)
        self.perform: Any = None
        self._fleet = fleet
        self._outbox: list[Instruction] = []
        self._cache: dict[bytes, None] = {}
        self._events = 0
        self._reports = 0

    def on_session(self, _now: float, _peer: PeerInfo) -> None:
        other = "prefill-0" if self.role is Role.MAIN else "main-0"
        announce = m.Announce(
            role=self.role,
            model="bench",
            block_tokens=BLOCK,
            bytes_per_block=1 << 20,
            pool_blocks=_BLOCKS,
            max_context=CONTEXT,
            max_running=4096,
            draining=False,
            kv_address="127.0.0.1:1",
            peers=(other,),
            fingerprint=FINGERPRINT,
            layout=LAYOUT,
        )
        self.send(announce)
        self.report()

    def on_resumed(self, now: float, node: str) -> None: ...

    def on_suspect(self, now: float, node: str, suspect: bool) -> None: ...

    def on_lost(self, now: float, node: str, reason: str) -> None: ...

    def on_timer(self, now: float) -> None: ...

    def next_deadline(self) -> float | None:
        return None

    def take_outbox(self) -> list[Instruction]:
        taken, self._outbox = self._outbox, []
        return taken

    def on_message(self, now: float, _node: str, message: m.Message, payload: bytes) -> None:
        began = time.perf_counter()
        self.take(now, message, payload)
        if len(payload) > _LONG:
            self._fleet.busy += time.perf_counter() - began

    def take(self, now: float, message: m.Message, payload: bytes) -> None:
        """One message of the router."""
        raise NotImplementedError

    def send(self, message: m.Message, payload: bytes = b"") -> None:
        """To the router."""
        self._outbox.append(Send("router-0", message, payload))

    def report(self) -> None:
        """A load report: nothing waits here."""
        self._reports += 1
        running = len(self._fleet.main.running) if self.role is Role.MAIN else 0
        report = m.LoadReport(
            seq=self._reports,
            running=running,
            queued=0,
            queued_tokens=0,
            free_blocks=_BLOCKS,
            promised_blocks=0,
            pinned_blocks=0,
            prefill_rate=1e6,
            decode_step_ms=5.0,
            line_rate={"a-b": 1e9},
            counters={"steps": float(self._reports)},
        )
        self.send(report)

    def publish(self, hashes: Sequence[bytes]) -> None:
        """New blocks of the cache."""
        new = [hash_ for hash_ in hashes if hash_ not in self._cache]
        if new:
            self._cache.update(dict.fromkeys(new))
            self._events += 1
            self.send(m.KvEvents(self._events, len(new), 0), b"".join(new))

    def hashes(self, salt: bytes, payload: bytes) -> list[bytes]:
        """Of a request's full blocks; both workers are asked one after the other."""
        known = self._fleet.hashed
        if known[0] != (salt, payload):
            root = chain_root(FINGERPRINT, LAYOUT, salt)
            self._fleet.hashed = known = ((salt, payload), chain_hashes(root, unpack_ids(payload), BLOCK))
        return known[1]

    def snapshot(self) -> None:
        """All that is cached."""
        self.send(m.Snapshot(self._events, len(self._cache)), b"".join(self._cache))


class _Prefill(_Core):
    """Draws an id at once, and "sends" all blocks at once."""

    def take(self, now: float, message: m.Message, payload: bytes) -> None:
        match message:
            case m.Prefill():
                hashes = self.hashes(message.salt, payload)
                start = len(payload) // 4
                row = m.TokenRow(message.rid, message.term, start, (next(self._fleet.ids),))
                self._fleet.drawn += 1
                self.send(m.TokensOut((row,)))
                self.publish(hashes)
            case m.Attach():
                main = self._fleet.main
                main.landed(message)
                main.perform(now)
            case m.SnapshotRequest():
                self.snapshot()
            case _:
                pass


class _Main(_Core):
    """Runs every request that it owns, a step at a time."""

    def __init__(self, fleet: Fleet, node: str, role: Role) -> None:
        super().__init__(fleet, node, role)
        self.running: dict[m.Rid, _Part] = {}
        self._parts: dict[m.Rid, _Part] = {}
        self._tickets = 0

    def take(self, _now: float, message: m.Message, payload: bytes) -> None:
        match message:
            case m.Admit():
                self._admit(message, payload)
            case m.Feed():
                self._feed(message, payload)
            case m.Release():
                self._parts.pop(message.rid, None)
                self.running.pop(message.rid, None)
            case m.SnapshotRequest():
                self.snapshot()
            case _:
                pass

    def landed(self, attach: m.Attach) -> None:
        """All blocks of a ticket are here."""
        part = self._parts.get(attach.rid)
        if part is not None:
            self.publish(part.hashes)
            self.send(m.Have(attach.ticket, attach.rid, len(part.hashes), complete=True))

    def step(self) -> None:
        """One id for each running request."""
        rows, over = [], []
        for rid, part in self.running.items():
            rows.append(m.TokenRow(rid, part.term, part.length, (next(self._fleet.ids),)))
            part.length += 1
            if part.length >= part.sampling.max_pos:
                over.append((rid, part))
        self._fleet.drawn += len(rows)
        self.send(m.TokensOut(tuple(rows)))
        for rid, part in over:
            del self.running[rid]
            self.send(m.Finished(rid, part.term, part.length, m.FinishReason.LENGTH))

    def _admit(self, admit: m.Admit, payload: bytes) -> None:
        hashes = self.hashes(admit.salt, payload)
        have = 0
        while have < len(hashes) and hashes[have] in self._cache:
            have += 1
        self._parts[admit.rid] = _Part(admit.term, len(payload) // 4, admit.sampling, hashes)
        self._tickets += 1
        ticket = b"" if have == len(hashes) else self._tickets.to_bytes(16, "big")
        last = hashes[-1] if hashes else b""
        rid, upto = admit.rid, len(hashes)
        self.send(m.Admitted(rid, admit.term, ticket, have, 0, upto, last, self.incarnation))
        if not ticket:
            self.send(m.Have(b"", rid, upto, complete=True))

    def _feed(self, feed: m.Feed, payload: bytes) -> None:
        part = self._parts.get(feed.rid)
        if part is None:
            return
        part.length = max(part.length, feed.start + len(payload) // 4)
        if feed.do is m.Do.OWN:
            part.term = feed.term
            self.publish(part.hashes)
            if part.length >= part.sampling.max_pos:
                self.send(m.Finished(feed.rid, part.term, part.length, m.FinishReason.LENGTH))
                return
            row = m.TokenRow(feed.rid, part.term, part.length, (next(self._fleet.ids),))
            part.length += 1
            self._fleet.drawn += 1
            self.send(m.TokensOut((row,)))
            if part.length >= part.sampling.max_pos:
                self.send(m.Finished(feed.rid, part.term, part.length, m.FinishReason.LENGTH))
            else:
                self.running[feed.rid] = part
