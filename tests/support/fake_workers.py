"""Scripted workers for the router's core: they keep the protocol, take random times, and hold the router to
its part.

No engine, no pool, no sockets: a cache is a set of hashes, a transfer is a delay, an id is a function of
all ids before it. `faults` lists what the router did that it may not do.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.kv.hashing import chain_hashes, chain_root, unpack_ids
from shared.wire import messages as m
from shared.wire.messages import Do, Role
from tests.support.fake_parts import BLOCK, FINGERPRINT, LAYOUT, Part, Prompt, next_id


class Net(Protocol):
    """What a fake worker needs of the mesh around it."""

    now: float
    rng: random.Random

    def at(self, when: float, act: Callable[[], None]) -> None: ...

    def to_router(self, worker: FakeWorker, message: m.Message, payload: bytes = b"") -> None: ...

    def to_worker(self, worker: FakeWorker, target: str, message: m.Message) -> None: ...

    def linked(self, one: str, other: str) -> bool: ...

    def peer(self, name: str) -> FakeWorker: ...

    def peers(self, worker: FakeWorker) -> tuple[str, ...]: ...


@dataclass(eq=False)
class FakeWorker:
    """One worker process. `pace` scales how long things take; `refuse` and `fail` are chances."""

    net: Net
    name: str
    role: Role
    datacenter: str
    incarnation: int
    blocks: int = 10_000
    pace: float = 1.0
    far: float = 0.4  # seconds that a transfer between datacenters takes at most
    refuse: float = 0.0
    fail: float = 0.0
    alive: bool = True
    draining: bool = False
    cache: dict[bytes, None] = field(default_factory=dict)
    parts: dict[m.Rid, Part] = field(default_factory=dict)
    prompts: dict[m.Rid, Prompt] = field(default_factory=dict)
    attached: dict[bytes, m.Attach] = field(default_factory=dict)
    aligned: dict[bytes, m.Rid] = field(default_factory=dict)
    tickets: dict[bytes, tuple[m.Rid, m.Admitted]] = field(default_factory=dict)
    terms: dict[m.Rid, int] = field(default_factory=dict)  # newest term that the router named here
    faults: list[str] = field(default_factory=list)
    _seq: int = 0
    _report: int = 0
    _ticket: int = 0

    # --- towards the router ---------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """What its name ends with after a dot: `m0.big` runs another model than `m0`."""
        return self.name.partition(".")[2] or "fake"

    @property
    def fingerprint(self) -> str:
        return FINGERPRINT if self.model == "fake" else f"{FINGERPRINT} {self.model}"

    def greet(self) -> None:
        """A session with the router has opened."""
        self.announce()
        self.report()

    def announce(self) -> None:
        self.net.to_router(
            self,
            m.Announce(
                role=self.role,
                model=self.model,
                block_tokens=BLOCK,
                bytes_per_block=1000,
                pool_blocks=self.blocks,
                max_context=4000,
                max_running=64,
                draining=self.draining,
                kv_address=f"{self.name}:1",
                peers=self.net.peers(self),
                fingerprint=self.fingerprint,
                layout=LAYOUT,
            ),
        )

    def report(self) -> None:
        self._report += 1
        running = sum(not part.over and part.own_term > 0 for part in self.parts.values())
        self.net.to_router(
            self,
            m.LoadReport(
                seq=self._report,
                running=running,
                queued=0,
                queued_tokens=sum(len(p.ids) for p in self.prompts.values() if p.drew is None),
                free_blocks=max(0, self.blocks - len(self.parts) * 10),
                promised_blocks=0,
                pinned_blocks=0,
                prefill_rate=1000.0 / self.pace,
                decode_step_ms=10.0 * self.pace,
                counters={"steps": float(self._report)},
            ),
        )

    def publish(self, hashes: Sequence[bytes]) -> None:
        new = [hash_ for hash_ in hashes if hash_ not in self.cache]
        self.cache.update(dict.fromkeys(new))
        if new:
            self._seq += 1
            self.net.to_router(self, m.KvEvents(self._seq, len(new), 0), b"".join(new))

    def evict(self) -> None:
        """Drop every block that no request here needs."""
        kept: dict[bytes, None] = {}
        for part in self.parts.values():
            kept.update(dict.fromkeys(hash_ for hash_ in part.hashes if hash_ in self.cache))
        gone = [hash_ for hash_ in self.cache if hash_ not in kept]
        self.cache = kept
        if gone:
            self._seq += 1
            self.net.to_router(self, m.KvEvents(self._seq, 0, len(gone)), b"".join(gone))

    # --- from the router ------------------------------------------------------------------------------------

    def on_message(self, message: m.Message, payload: bytes) -> None:
        match message:
            case m.Admit():
                self._admit(message, unpack_ids(payload))
            case m.Prefill():
                self._prefill(message, unpack_ids(payload))
            case m.Attach():
                self._attach(message, payload)
            case m.Feed():
                self._feed(message, unpack_ids(payload))
            case m.Release():
                self._release(message)
            case m.Resume():
                self._resume(message)
            case m.SnapshotRequest():
                self.net.to_router(self, m.Snapshot(self._seq, len(self.cache)), b"".join(self.cache))
            case m.First():
                self._first(message)
            case m.Flush():
                self.evict()
            case m.Peers() | m.LineShare() | m.Drain():
                pass
            case _:
                self.faults.append(f"{self.name} got {type(message).__name__}")

    def _name(self, rid: m.Rid, term: int, what: str) -> None:
        """A message that names a term has to name a new one."""
        if term <= self.terms.get(rid, 0):
            self.faults.append(f"{self.name}: {what} of {rid} names term {term} after {self.terms[rid]}")
        self.terms[rid] = max(term, self.terms.get(rid, 0))

    def _admit(self, admit: m.Admit, ids: list[int]) -> None:
        self._name(admit.rid, admit.term, "Admit")
        old = self.parts.pop(admit.rid, None)
        if old is not None:
            old.over = True
            # One that began by First may be asked again: the router may not know yet.
            if old.own_term > old.term or old.alone:
                self.faults.append(f"{self.name}: {admit.rid} is asked again while it draws")
        if self.draining or self.net.rng.random() < self.refuse:
            reason = m.RefuseReason.DRAINING if self.draining else m.RefuseReason.NO_BLOCKS
            self.net.to_router(self, m.Refused(admit.rid, admit.term, reason, 200))
            return
        root = chain_root(self.fingerprint, LAYOUT, admit.salt)
        hashes = chain_hashes(root, ids, BLOCK)
        if admit.purpose is m.Purpose.WARM:
            self._warm(admit, hashes)
            return
        have = 0
        while have < len(hashes) and hashes[have] in self.cache:
            have += 1
        alone = 0 < len(ids) - have * BLOCK <= admit.alone and self.role is Role.MAIN
        whole = have == len(hashes) or alone
        self._ticket += 1
        ticket = b"" if whole else zlib.crc32(self.name.encode()).to_bytes(4, "big") + self._number()
        part = Part(admit.rid, admit.term, ids, hashes, admit.sampling, ticket, whole)
        if alone:
            part.alone, part.own_term = True, admit.term
        self.parts[admit.rid] = part
        last = hashes[-1] if hashes else b""
        admitted = m.Admitted(
            admit.rid, admit.term, ticket, have, 0, len(hashes), last, self.incarnation, alone
        )
        self.tickets[ticket] = (admit.rid, admitted)
        self.net.to_router(self, admitted)
        if alone:
            self._own(part)
        elif whole:
            self.net.to_router(self, m.Have(b"", admit.rid, len(hashes), complete=True))
        self._maybe_fail(part.rid, part.term, lambda: part.ticket, lambda: not part.over)

    def _warm(self, admit: m.Admit, hashes: list[bytes]) -> None:
        have = next((at for at, hash_ in enumerate(hashes) if hash_ not in self.cache), len(hashes))
        self._ticket += 1
        ticket = (
            b"" if have == len(hashes) else zlib.crc32(self.name.encode()).to_bytes(4, "big") + self._number()
        )
        admitted = m.Admitted(admit.rid, 1, ticket, have, 0, len(hashes), hashes[-1], self.incarnation)
        self.tickets[ticket] = (admit.rid, admitted)
        self.net.to_router(self, admitted)
        if ticket:
            self.aligned[ticket] = admit.rid
        else:
            self.net.to_router(self, m.Have(b"", admit.rid, len(hashes), complete=True))

    def _number(self) -> bytes:
        return self.incarnation.to_bytes(4, "big") + self._ticket.to_bytes(8, "big")

    def _maybe_fail(
        self, rid: m.Rid, term: int, ticket: Callable[[], bytes], live: Callable[[], bool]
    ) -> None:
        if self.net.rng.random() >= self.fail:
            return
        reasons = {
            Role.PREFILL: (m.FailReason.INTERNAL, m.FailReason.NAN),
            Role.RELAY: (m.FailReason.PRESSURE, m.FailReason.INTERNAL, m.FailReason.LIMIT),
            Role.MAIN: (m.FailReason.REVOKED, m.FailReason.PARKED, m.FailReason.INTERNAL),
        }
        reason = self.net.rng.choice(reasons[self.role])

        def happen() -> None:
            if self.alive and live():
                part = self.parts.pop(rid, None)
                if part is not None:
                    part.over = True
                self.prompts.pop(rid, None)
                newest = max(term, 0 if part is None else part.own_term)
                self.net.to_router(self, m.Failed(rid, newest, ticket(), reason, "by chance"))

        self.net.at(self.net.now + self.net.rng.random() * 0.5, happen)

    def _feed(self, feed: m.Feed, ids: list[int]) -> None:
        if feed.do is Do.OWN:
            self._name(feed.rid, feed.term, "Feed")
        part = self.parts.get(feed.rid)
        if part is None:
            return  # it failed, or was refused, while the Feed was on its way
        if feed.start > len(part.ids):
            part.held.append((feed, ids))
            return
        self._merge(part, feed, ids)
        for held in list(part.held):
            if held[0].start <= len(part.ids):
                part.held.remove(held)
                self._merge(part, *held)

    def _merge(self, part: Part, feed: m.Feed, ids: list[int]) -> None:
        overlap = part.ids[feed.start : feed.start + len(ids)]
        if overlap != ids[: len(overlap)]:
            self.faults.append(f"{self.name}: fed ids of {part.rid} at {feed.start} differ from those known")
        if part.own_term and feed.start + len(ids) > len(part.ids):
            if part.own_term > part.term or part.alone:
                self.faults.append(f"{self.name}: the owner of {part.rid} was fed ids that it has not sent")
            self._give_up(part)  # First overtook a Feed: it began where the log had gone on
            return
        part.ids.extend(ids[len(overlap) :])
        if feed.do is Do.OWN:
            running = part.own_term
            part.own_term = feed.term
            if running:
                self._row(part, feed.start + len(ids))
            else:
                self._own(part)
        elif feed.do is Do.EXTEND:
            part.extend = feed.term
            self._extend(part)

    def _give_up(self, part: Part) -> None:
        del self.parts[part.rid]
        part.over = True
        reason = m.FailReason.INTERNAL
        self.net.to_router(self, m.Failed(part.rid, part.own_term, b"", reason, "divergence"))

    def _extend(self, part: Part) -> None:
        def done() -> None:
            if self.alive and not part.over and part.extend and part.whole:
                term, part.extend = part.extend, 0
                self.net.to_router(self, m.CaughtUp(part.rid, term, len(part.ids)))

        if part.whole:
            self.net.at(self.net.now + self.net.rng.random() * 0.05, done)

    def _own(self, part: Part) -> None:
        """Draw from the end of what is known on; what is missing is computed here."""
        part.whole, part.ticket = True, b""
        self.net.at(self.net.now + self.net.rng.random() * 0.05, lambda: self._step(part))

    def _step(self, part: Part) -> None:
        if not self.alive or part.over or part.rid not in self.parts:
            return
        start = len(part.ids)
        for _ in range(self.net.rng.choice((1, 1, 1, 3))):
            part.ids.append(next_id(part.ids))
            ended = part.ids[-1] in part.sampling.stop_ids or len(part.ids) >= part.sampling.max_pos
            if ended:
                break
        self._row(part, start)
        if ended:
            part.over = True
            stop = part.ids[-1] in part.sampling.stop_ids
            reason = m.FinishReason.STOP if stop else m.FinishReason.LENGTH
            self.net.to_router(self, m.Finished(part.rid, part.own_term, len(part.ids), reason))
            return
        self.net.at(self.net.now + 0.01 * self.pace * (0.5 + self.net.rng.random()), lambda: self._step(part))

    def _row(self, part: Part, start: int) -> None:
        if start < len(part.ids):
            row = m.TokenRow(part.rid, part.own_term, start, tuple(part.ids[start:]))
            self.net.to_router(self, m.TokensOut((row,)))

    def _resume(self, resume: m.Resume) -> None:
        part = self.parts.get(resume.rid)
        if part is not None and part.own_term:
            self._row(part, resume.start)

    def _release(self, release: m.Release) -> None:
        rid = release.rid
        if release.term < self.terms.get(rid, 0):
            self.faults.append(f"{self.name}: release of {rid} up to {release.term}, at {self.terms[rid]}")
        part = self.parts.pop(rid, None)
        if part is not None:
            if release.align and not part.whole:
                self.aligned[part.ticket] = rid
            part.over = True
        self.prompts.pop(rid, None)
        for ticket in [t for t, attach in self.attached.items() if attach.rid == rid]:
            if not release.align:
                del self.attached[ticket]

    # --- prefill --------------------------------------------------------------------------------------------

    def _prefill(self, prefill: m.Prefill, ids: list[int]) -> None:
        self._name(prefill.rid, prefill.term, "Prefill")
        if self.draining or self.net.rng.random() < self.refuse:
            reason = m.RefuseReason.DRAINING if self.draining else m.RefuseReason.QUEUE_FULL
            self.net.to_router(self, m.Refused(prefill.rid, prefill.term, reason, 200))
            return
        hashes = chain_hashes(chain_root(self.fingerprint, LAYOUT, prefill.salt), ids, BLOCK)
        prompt = Prompt(prefill.rid, prefill.term, ids, hashes, prefill.sampling)
        self.prompts[prefill.rid] = prompt
        seconds = self.pace * (0.002 + len(ids) / 1000) * (0.5 + self.net.rng.random())
        self.net.at(self.net.now + seconds, lambda: self._draw(prompt))
        self._maybe_fail(prompt.rid, prompt.term, lambda: b"", lambda: self.prompts.get(prompt.rid) is prompt)

    def _draw(self, prompt: Prompt) -> None:
        if not self.alive or self.prompts.get(prompt.rid) is not prompt:
            return
        prompt.drew = next_id(prompt.ids)
        self.publish(prompt.hashes)
        row = m.TokenRow(prompt.rid, prompt.term, len(prompt.ids), (prompt.drew,))
        self.net.to_router(self, m.TokensOut((row,)))
        for ticket in list(prompt.relays):
            self._tell_relay(prompt, ticket)
        for attach in [one for one in self.attached.values() if one.rid == prompt.rid]:
            self._send(attach)

    def _tell_relay(self, prompt: Prompt, ticket: bytes) -> None:
        if prompt.drew is not None:
            first = m.First(ticket, prompt.rid, len(prompt.ids), (prompt.drew,))
            self.net.to_worker(self, prompt.relays.pop(ticket), first)

    def _attach(self, attach: m.Attach, payload: bytes) -> None:
        if attach.ticket in self.attached:
            return  # another class
        issued = self.net.peer(attach.target).tickets.get(attach.ticket)
        if issued is not None:
            told = issued[1]
            if (told.have, told.expected, told.upto) != (attach.have, attach.expected, attach.upto):
                self.faults.append(f"{self.name}: Attach of {attach.rid} differs from its Admitted")
        prompt = self.prompts.get(attach.rid)
        if prompt is not None and self.net.peer(attach.target).role is Role.RELAY:
            prompt.relays[attach.ticket] = attach.target
            self._tell_relay(prompt, attach.ticket)
        self.attached[attach.ticket] = attach
        self._hashes = payload
        if prompt is None or prompt.drew is not None:
            hashes = [payload[at : at + 16] for at in range(0, len(payload), 16)]
            self._send(attach, hashes)

    def _send(self, attach: m.Attach, hashes: Sequence[bytes] = ()) -> None:
        """All blocks at once, after a while; or Missing."""
        if not hashes:
            source = self.prompts.get(attach.rid) or self.parts.get(attach.rid)
            hashes = [] if source is None else source.hashes
        known = hashes[: attach.upto]
        absent = [at for at, hash_ in enumerate(known) if hash_ not in self.cache]
        if len(known) < attach.upto or absent or self.net.rng.random() < self.fail / 2:
            self.attached.pop(attach.ticket, None)
            self.net.to_router(self, m.Missing(attach.rid, attach.ticket, absent[0] if absent else 0))
            return
        far = self.net.peer(attach.target).datacenter != self.datacenter
        seconds = (self.far if far else 0.01) * (0.2 + 0.8 * self.net.rng.random()) * self.pace
        mine = self.incarnation

        def land() -> None:
            target = self.net.peer(attach.target)
            same = self.alive and self.incarnation == mine and target.incarnation == attach.incarnation
            if not same or not self.net.linked(self.name, target.name):
                return
            if self.attached.pop(attach.ticket, None) is not None:
                target.landed(attach.ticket, known)

        self.net.at(self.net.now + seconds, land)

    # --- decoders' transfers --------------------------------------------------------------------------------

    def landed(self, ticket: bytes, hashes: Sequence[bytes]) -> None:
        """The last block of a ticket is here."""
        if not self.alive:
            return
        rid = self.aligned.pop(ticket, None)
        if rid is not None:
            self.publish(hashes)
            self.net.to_router(self, m.Have(ticket, rid, len(hashes), complete=True))
            return
        for part in self.parts.values():
            if part.ticket == ticket and ticket and not part.whole:
                self.publish(part.hashes)
                part.whole = True
                self.net.to_router(self, m.Have(ticket, part.rid, len(part.hashes), complete=True))
                if part.first is not None:
                    self._start(part)
                elif part.extend:
                    self._extend(part)
                return

    def _first(self, first: m.First) -> None:
        part = self.parts.get(first.rid)
        early = part is None or first.start > len(part.ids)
        if part is not None and not early and part.ticket == first.ticket and not part.own_term:
            part.first = first
            if part.whole:
                self._start(part)

    def _start(self, part: Part) -> None:
        """A relay begins by itself, with prefill's id."""
        first = part.first
        if first is None or part.own_term or len(part.ids) > first.start + len(first.ids):
            return
        part.ids = part.ids[: first.start] + list(first.ids)
        part.own_term = part.term
        self._row(part, first.start)
        if part.ids[-1] in part.sampling.stop_ids or len(part.ids) >= part.sampling.max_pos:
            part.over = True
            return
        self.net.at(self.net.now + 0.005, lambda: self._step(part))
