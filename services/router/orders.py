"""What the router says to workers about a request, and the books that go with each word. Decides nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from services.router.legs import Leg, LegEvent, LegState
from services.router.lifecycle import Request
from services.router.mesh import Mesh
from services.router.worker import Placed
from shared.kv.hashing import pack_ids
from shared.wire.codec import encode
from shared.wire.framing import CONTROL_PREFIX_BYTES
from shared.wire.messages import Admit, Attach, Do, Feed, Prefill, Release, Resume, Role, TransferClass


class Orders:
    """Each method sends one message and changes the leg it is for."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    # --- asking ---------------------------------------------------------------------------------------------

    def admit(
        self,
        now: float,
        r: Request,
        role: Role,
        node: str,
        base: int,
        *,
        parked: bool = False,
        alone: int = 0,
    ) -> Leg:
        """Ask a decoder to take the log's first `base` ids, and to draw at once where it lacks no more than
        `alone` of them.
        """
        leg = Leg(role, node, r.next_term(), base, now, alone=alone > 0)
        self._admit(now, r, leg, parked=parked, alone=alone)
        return leg

    def readmit(self, now: float, r: Request, leg: Leg) -> None:
        """Ask the same decoder again: its ticket is void, what has landed stays, another sender can come."""
        leg.step(LegEvent.READMIT)
        self._close_books(leg)
        if r.log.following == leg.term:
            r.log.follow(0)
        leg.term = r.next_term()
        leg.asked_at = now
        leg.source = None
        leg.source_tried = leg.armed = leg.alone = False
        leg.ticket = b""
        self._admit(now, r, leg, parked=r.singular)
        self._mesh.count("readmitted_total")

    def _admit(self, now: float, r: Request, leg: Leg, *, parked: bool, alone: int = 0) -> None:
        r.legs[leg.term] = leg
        leg.fed = leg.base
        message = Admit(
            rid=r.rid,
            term=leg.term,
            salt=r.spec.salt,
            priority=r.spec.priority,
            prompt_len=r.log.prompt_len,
            sampling=r.sampling,
            remaining_ms=_remaining(now, r),
            parked=parked,
            trace=r.spec.trace,
            alone=alone,
        )
        self._mesh.send(leg.node, message, pack_ids(r.log.ids[: leg.base]))
        hashes = r.hashes(leg.base)
        have = self._mesh.index.match(leg.node, hashes).have
        growth = min(r.log.max_pos - leg.base, self._mesh.worker.growth_tokens)
        missing = len(hashes) - have + -(-growth // r.pool.block_tokens)
        singular = len(hashes) if r.singular and leg.role is Role.RELAY else 0
        lacking = leg.base - have * r.pool.block_tokens if leg.alone else 0  # it computes that, and soon
        self._open_books(leg, Placed(now, tokens=lacking, blocks=missing, singular=singular))
        self._mesh.index.expect(leg, leg.node, hashes)

    def prefill(self, now: float, r: Request, node: str) -> Leg:
        """Have the whole log prefilled, and its next id drawn."""
        leg = Leg(Role.PREFILL, node, r.next_term(), len(r.log), now)
        r.legs[leg.term] = leg
        message = Prefill(
            rid=r.rid,
            term=leg.term,
            salt=r.spec.salt,
            priority=r.spec.priority,
            prompt_len=r.log.prompt_len,
            sampling=r.sampling,
            remaining_ms=_remaining(now, r),
            trace=r.spec.trace,
            scores=r.spec.scores if not r.log.made else -1,
        )
        self._mesh.send(node, message, pack_ids(r.log.ids))
        hashes = r.hashes(leg.base)
        cached = self._mesh.index.match(node, hashes).have * r.pool.block_tokens
        self._open_books(leg, Placed(now, tokens=max(1, leg.base - cached)))
        self._mesh.index.expect(leg, node, hashes)
        r.trace.mark("prefill_sent", now)
        return leg

    def sender(self, now: float, r: Request, node: str, base: int) -> Leg:
        """A leg of a worker that only sends blocks which it holds anyway."""
        leg = Leg(Role.PREFILL, node, r.next_term(), base, now, state=LegState.READY, holds_rid=False)
        r.legs[leg.term] = leg
        return leg

    # --- KV -------------------------------------------------------------------------------------------------

    def attach(self, now: float, r: Request, leg: Leg, source: Leg, cls: TransferClass) -> None:
        """Tell `source` to send what the leg's ticket lacks; again with the same ticket: another class. The
        receiver of a parked transfer is told too when it is parked no more, as its ticket gave way to others.
        """
        message = Attach(
            rid=r.rid,
            target=leg.node,
            incarnation=leg.incarnation,
            ticket=leg.ticket,
            have=leg.have,
            expected=leg.expected,
            upto=leg.upto,
            last_hash=leg.last_hash,
            cls=cls,
            first=leg.armed,
            trace=r.spec.trace,
        )
        payload = b"" if source.holds_rid else b"".join(r.hashes(leg.upto * r.pool.block_tokens))
        self._mesh.send(source.node, message, payload)
        again = leg.source is source
        if again and TransferClass.PARKED in (leg.cls, cls):
            self._mesh.send(leg.node, message)
        leg.source, leg.source_tried, leg.cls = source, True, cls
        if not again:
            r.trace.mark("main_attached" if leg.role is Role.MAIN else "relay_attached", now)
            self._book_transfer(now, r, leg, source)

    def _book_transfer(self, now: float, r: Request, leg: Leg, source: Leg) -> None:
        """The bytes wait for the line until the leg is complete, or has another ticket."""
        blocks = max(0, leg.upto - leg.have - leg.expected)
        sender, target = self._mesh.fleet.get(source.node), self._mesh.fleet.get(leg.node)
        if sender is None or target is None or target.announce is None:
            return
        line = self._mesh.fleet.line(sender, target)
        size = blocks * target.announce.bytes_per_block
        self._unbook(leg)
        sender.book((leg, "send"), Placed(now, line=line.name, bytes=size, request=False))
        leg.booked = sender.node
        if leg.role is Role.MAIN:
            r.trace.kv_blocks_sent += blocks
            r.trace.block_bytes = target.announce.bytes_per_block
            self._mesh.count("kv_bytes_asked_total", size)
            self._mesh.count("kv_bytes_saved_total", leg.have * target.announce.bytes_per_block)

    # --- the log --------------------------------------------------------------------------------------------

    def feed(self, r: Request, leg: Leg, do: Do, term: int, upto: int | None = None) -> None:
        """Tell a decoder the log from where it was told last, up to a length or its end."""
        end = len(r.log) if upto is None else upto
        message = Feed(r.rid, term, min(leg.fed, end), do)
        payload = pack_ids(r.log.ids[message.start : end])
        leg.fed = max(leg.fed, end)
        self._mesh.send(leg.node, message, payload)
        r.trace.feeds += 1
        r.trace.handoff_bytes += CONTROL_PREFIX_BYTES + len(encode(message)) + len(payload)

    def own(self, now: float, r: Request, leg: Leg) -> None:
        """Name a decoder owner: the next term, and the rest of the log."""
        term = r.next_term()
        r.legs[term] = leg
        r.log.own(term)
        leg.step(LegEvent.OWN)
        leg.owns = term
        leg.armed = False
        self.feed(r, leg, Do.OWN, term)
        self.engaged(now, leg)

    def engaged(self, now: float, leg: Leg) -> None:
        """The leg is to draw from now on: its worker has to show steps."""
        worker = self._mesh.fleet.get(leg.node)
        if worker is not None:
            if not worker.drawing:
                worker.progress_at = now
            worker.drawing.add(leg)

    def resume(self, r: Request, leg: Leg) -> None:
        """Ask an owner to repeat what the log lacks."""
        self._mesh.send(leg.node, Resume(r.rid, len(r.log)))
        self._mesh.count("resumes_total")

    # --- ends -----------------------------------------------------------------------------------------------

    def release(self, r: Request, leg: Leg, *, align: bool = False) -> None:
        """End a leg's part."""
        if leg.live:
            self._mesh.send(leg.node, Release(r.rid, r.term, align))
        self.drop(leg)

    def drop(self, leg: Leg) -> None:
        """A leg is out, without a word: refused or lost."""
        leg.step(LegEvent.DROP)
        self._close_books(leg)

    def landed(self, leg: Leg) -> None:
        """A decoder has every block of its ticket."""
        self._mesh.index.settle(leg)
        self._unbook(leg)

    def _unbook(self, leg: Leg) -> None:
        sender = self._mesh.fleet.get(leg.booked)
        if sender is not None:
            sender.give((leg, "send"))

    def drew(self, leg: Leg) -> None:
        """A prefill has drawn its id: nothing of it waits any more."""
        self._mesh.index.settle(leg)
        worker = self._mesh.fleet.get(leg.node)
        if worker is not None:
            worker.give(leg)
            worker.drawing.discard(leg)
            worker.breaker.succeeded()

    @contextlib.contextmanager
    def put_aside(self, r: Request) -> Iterator[None]:
        """Within it the request's own placements do not count: it looks at its road again."""
        keys = [key for leg in r.live_legs() for key in (leg, (leg, "send"))]
        undo = [worker.put_aside(key) for worker in self._mesh.fleet.all() for key in keys]
        try:
            yield
        finally:
            for each in undo:
                each()

    def _open_books(self, leg: Leg, placed: Placed) -> None:
        worker = self._mesh.fleet.get(leg.node)
        if worker is not None:
            worker.take(leg, placed)

    def _close_books(self, leg: Leg) -> None:
        self.landed(leg)
        worker = self._mesh.fleet.get(leg.node)
        if worker is not None:
            worker.give(leg)
            worker.drawing.discard(leg)


def _remaining(now: float, r: Request) -> int:
    """Milliseconds until the request's deadline."""
    return max(0, int(1000 * (r.deadline - now)))
