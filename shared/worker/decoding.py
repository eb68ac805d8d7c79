"""Requests at a decoder, relay or main: what a Feed, a First, a landed ticket or a drawn id means for each.

The router tells the log; an owner adds only what it has sent itself (I1). The table is in `part`; blocks
come by `kv_in`, admission by `admitting`, and the engine computes.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.engine.events import Extended, Fault, Finished, Sampled
from shared.engine.sequence import Goal
from shared.errors import Divergence, InvalidRequest, InvariantBroken, ProtocolError
from shared.kv.hashing import unpack_ids
from shared.wire.messages import (
    CaughtUp,
    Do,
    Failed,
    FailReason,
    Feed,
    FinishReason,
    First,
    Resume,
    Rid,
    Role,
)
from shared.wire.messages import Finished as FinishedMessage
from shared.worker import asked
from shared.worker.arrival import Landed, Spoiled
from shared.worker.kv_in import KvIn
from shared.worker.part import FED, TABLE, Act, Part, Stage, Told
from shared.worker.seats import Seats
from shared.worker.sources import SourceState
from shared.worker.worker_site import Site


class Decoding:
    """All requests of one decoder; the `Source` of its transfers."""

    def __init__(self, site: Site, kv_in: KvIn) -> None:
        self._site = site
        self._kv_in = kv_in
        self._parts: dict[Rid, Part] = {}
        self._seats = Seats(site)
        self._acts = {
            Act.KEEP: self._keep,
            Act.WAIT_TO_OWN: self._wait_to_own,
            Act.START: self._start,
            Act.EXTEND: self._extend,
            Act.OWN: self._own,
            Act.OWN_FIRST: self._own_first,
            Act.REPEAT: self._keep,
            Act.CONFIRM: self._keep,
            Act.END: self._ended,
        }

    def __len__(self) -> int:
        return len(self._parts)

    def get(self, rid: Rid) -> Part | None:
        return self._parts.get(rid)

    def of_seq(self, seq: int) -> Part | None:
        """Whose sequence it is."""
        return self._seats.get(seq)

    def all(self) -> Iterable[Part]:
        return self._parts.values()

    def of(self, router: str) -> list[Part]:
        return [part for part in self._parts.values() if part.ask.router == router]

    # --- as a source ----------------------------------------------------------------------------------------

    def state(self, rid: Rid) -> SourceState:
        part = self._parts.get(rid)
        return SourceState.GONE if part is None else SourceState.DONE

    def hashes(self, rid: Rid) -> list[bytes]:
        part = self._parts.get(rid)
        return [] if part is None else part.ask.hashes

    def term(self, rid: Rid) -> int:
        part = self._parts.get(rid)
        return 0 if part is None else part.term

    def prompt_len(self, rid: Rid) -> int:
        part = self._parts.get(rid)
        return 0 if part is None else part.ask.prompt_len

    # --- from the router and P ------------------------------------------------------------------------------

    def join(self, part: Part) -> None:
        """A request was admitted."""
        self._parts[part.rid] = part
        self._site.timers.set(("backstop", part.rid), part.ask.deadline)

    def on_feed(self, now: float, node: str, feed: Feed, payload: bytes) -> None:
        """A run of the log, in order or held until the gap before it closes. Older terms are ignored."""
        part = self._parts.get(feed.rid)
        if part is None or part.ask.router != node:
            self._site.count("feeds_stray_total")
            return
        if feed.term < part.fed_term:
            self._site.count("old_term_total")
            return
        self._seats.adopt(part)
        try:
            ids = unpack_ids(payload)
            if feed.start > len(part.known):
                part.known.hold(feed, ids)
                return
            self._feed(now, part, feed, ids)
            while self._parts.get(feed.rid) is part and (held := part.known.ready()) is not None:
                self._feed(now, part, *held)
        except (ValueError, ProtocolError) as error:
            self.fail(part, FailReason.INTERNAL, f"feed: {error}")
        except Divergence as error:
            self._site.count("divergence_total")
            self.fail(part, FailReason.INTERNAL, f"divergence: {error}")

    def _feed(self, now: float, part: Part, feed: Feed, ids: list[int]) -> None:
        part.fed_term = feed.term
        if part.owns:
            self._feed_owner(now, part, feed, ids)
            return
        part.known.merge(feed.start, ids)
        if feed.do is Do.OWN:
            part.own_term = feed.term
        elif feed.do is Do.EXTEND:
            part.catching = (feed.term, len(part.known))
        part.want = max(part.want, feed.do)
        self.tell(now, part, FED[feed.do])

    def _feed_owner(self, now: float, part: Part, feed: Feed, ids: list[int]) -> None:
        """An owner knows the log: a run may only confirm it, or make it the owner under a new term."""
        end = feed.start + len(ids)
        if end > len(part.known):
            raise Divergence(f"the log has {end} ids, its owner here sent {len(part.known)}")
        part.known.merge(feed.start, ids)
        self.tell(now, part, FED[feed.do])
        if feed.do is Do.OWN:
            part.own_term = feed.term
            self._send_ids(part, end)
            if part.finished is not None:
                self._send_finished(part)
        elif feed.term > part.own_term:
            raise Divergence(
                f"term {feed.term} feeds an owner of term {part.own_term} and does not make it owner"
            )

    def on_first(self, now: float, first: First) -> None:
        """P's first id: a relay's run begins with it, once every block is here."""
        part = self._parts.get(first.rid)
        if part is None or first.ticket != part.ticket or first.start > len(part.known) or not first.ids:
            self._site.count("firsts_stray_total")
            return
        part.first = first
        self.tell(now, part, Told.FIRST)

    def on_resume(self, node: str, message: Resume) -> None:
        """Repeat own ids from a position on."""
        part = self._parts.get(message.rid)
        if part is not None and part.owns and part.ask.router == node:
            self._send_ids(part, message.start)
            if part.finished is not None:
                self._send_finished(part)

    def release(self, now: float, rid: Rid, *, align: bool) -> None:
        """The request is over here. With `align`, an open ticket goes on by itself up to the prompt's end."""
        part = self._parts.get(rid)
        if part is None:
            if not align:
                self._kv_in.drop_aligned(rid)
            return
        ticket = part.ticket
        if align and self._site.role is Role.MAIN and part.stage is Stage.LANDING and ticket:
            part.ticket = b""
            self.end(part)
            self._kv_in.align(now, ticket, part.ask.prompt_len // self._site.block_tokens)
        else:
            self.end(part)

    # --- what kv_in says ------------------------------------------------------------------------------------

    def on_fact(self, now: float, fact: Landed | Spoiled) -> None:
        """A ticket has landed, or cannot."""
        part = self._parts.get(fact.rid)
        if part is None or part.ticket != fact.ticket:
            if isinstance(fact, Landed):
                self._site.pool.unpin(fact.blocks)
            return
        if isinstance(fact, Spoiled):
            self.fail(part, FailReason.STALLED, fact.detail)
            return
        part.blocks = list(fact.blocks)
        self.tell(now, part, Told.LANDED)

    # --- acts -----------------------------------------------------------------------------------------------

    def tell(self, now: float, part: Part, told: Told) -> None:
        """Act on what happened, by the table; a pair that is not in it is a bug and raises KeyError."""
        self._acts[TABLE[part.stage, told]](now, part)

    def _keep(self, now: float, part: Part) -> None:
        """Nothing to do now: what was told is in the part."""

    def _start(self, now: float, part: Part) -> None:
        part.stage = Stage.READY
        if part.want is Do.OWN:
            self._own(now, part)
        elif part.first is not None:
            self._own_first(now, part)
        elif part.want is Do.EXTEND:
            self._extend(now, part)

    def _wait_to_own(self, now: float, part: Part) -> None:
        """Own when the ticket is complete; at once where little is missing, or where nothing comes
        (pipeline `MD`).
        """
        arrival = self._kv_in.get(part.ticket)
        if arrival is None:
            return
        lacking = (part.upto - arrival.book.published) * self._site.block_tokens
        # Compared as it is set: a difference could round to less.
        until = arrival.landed_at + self._site.policy.landing_patience
        if lacking <= self._site.policy.local_tokens or now >= until:
            self._go_alone(now, part)
        else:
            self._site.timers.set(("landing", part.rid), until)

    def on_landing_due(self, now: float, rid: Rid) -> None:
        """A new owner waits for its transfer: it does so only while bytes come."""
        part = self._parts.get(rid)
        if part is None or part.stage is not Stage.LANDING:
            return
        self._wait_to_own(now, part)

    def _go_alone(self, now: float, part: Part) -> None:
        """Extend over what the transfer has not brought. Blocks on their way under other tickets are not
        waited for.
        """
        pool = self._site.pool
        part.blocks = self._kv_in.close(part.ticket)
        part.ticket = b""
        pool.promise(part.growth, max(0, min(part.upto - len(part.blocks), pool.available)))
        self._site.count("local_extends_total")
        self.tell(now, part, Told.LANDED)

    def _extend(self, now: float, part: Part) -> None:
        part.stage = Stage.EXTENDING
        part.extended_at = now
        if not self._compute(now, part, Goal.EXTEND):
            return
        if self._seats.caught_up(part):
            self._caught_up(part, part.given)

    def _own(self, now: float, part: Part) -> None:
        if self._compute(now, part, Goal.OWN):
            part.stage = Stage.OWNING
            part.owned_at = now
            part.catching = None
            self._site.count("ownerships_total")

    def _own_first(self, now: float, part: Part) -> None:
        first = part.first
        if first is None or len(part.known) > first.start + len(first.ids):
            return  # the log is further already: somebody else owns
        try:
            part.known.merge(first.start, first.ids)
        except Divergence as error:
            self._site.count("divergence_total")
            self.fail(part, FailReason.INTERNAL, f"divergence: {error}")
            return
        if first.logprobs is not None:
            part.logprobs.update(enumerate(first.logprobs, first.start))
        part.own_term = part.ask.term
        self._site.outbox.row(part.ask.router, part.row(first.start, len(part.known)))
        part.made += len(first.ids)
        self._own(now, part)

    def _compute(self, now: float, part: Part, goal: Goal) -> bool:
        """Have the engine compute. False: it cannot, and the part has failed."""
        try:
            self._seats.compute(now, part, goal)
        except InvalidRequest as error:
            self.fail(part, FailReason.INTERNAL, str(error))
            return False
        return True

    # --- what the engine says -------------------------------------------------------------------------------

    def on_sampled(self, part: Part, event: Sampled) -> None:
        """An id was drawn by an owner."""
        if part.stage is not Stage.OWNING or event.position != len(part.known):
            raise InvariantBroken(f"id {event.position} of {part.rid} was drawn at stage {part.stage.value}")
        part.known.ids.append(event.id)
        part.given += 1
        part.made += 1
        part.first_at = part.first_at or self._site.journal.now
        logprob = asked.wire_logprob(event.logprob, event.top)
        if logprob is not None:
            part.logprobs[event.position] = logprob
        self._send_ids(part, event.position)
        self._site.count("tokens_total")
        if self._site.role is Role.RELAY:
            self._site.count("eager_tokens_total")

    def on_extended(self, part: Part, event: Extended) -> None:
        """A standby has extended over what it was fed."""
        self._caught_up(part, event.upto)

    def _caught_up(self, part: Part, upto: int) -> None:
        if part.catching is not None and upto >= part.catching[1]:
            self._site.outbox.send(part.ask.router, CaughtUp(part.rid, part.catching[0], upto))
            journal, ids = self._site.journal, upto - part.ask.prompt_len
            journal.span("catch up", part.ask.trace, part.rid, part.extended_at, journal.now, ids=ids)
            part.catching = None

    def on_finished(self, now: float, part: Part, event: Finished) -> None:
        """An owner has drawn the last id. Its blocks are cache from now on."""
        part.finished = (event.at, event.reason)
        self.tell(now, part, Told.FINISHED)

    def _ended(self, now: float, part: Part) -> None:
        part.stage = Stage.ENDED
        part.ended_at = now
        self._seats.leave(part)
        self._send_finished(part)

    def on_fault(self, part: Part, event: Fault) -> None:
        """The engine cannot go on with a sequence."""
        self.fail(part, FailReason(event.reason), event.detail)

    def check_limit(self) -> None:
        """A relay gives up what it has decoded for too long without a cut."""
        if self._site.role is not Role.RELAY:
            return
        most = self._site.policy.relay_max_tokens
        for part in [p for p in self._seats.all() if p.stage is Stage.OWNING and p.made >= most]:
            self.fail(part, FailReason.LIMIT, f"{part.made} ids without a cut")

    def _send_ids(self, part: Part, start: int) -> None:
        if start < len(part.known):
            self._site.outbox.row(part.ask.router, part.row(start, len(part.known)))

    def _send_finished(self, part: Part) -> None:
        if part.finished is not None:
            at, reason = part.finished
            message = FinishedMessage(part.rid, part.own_term, at, FinishReason(reason))
            self._site.outbox.send(part.ask.router, message)

    # --- pauses and ends ------------------------------------------------------------------------------------

    def pause(self, router: str) -> None:
        """The router is silent: nothing of its requests is computed; all is kept."""
        self._seats.pause(router)

    def resume(self, router: str) -> None:
        """The router is back."""
        self._seats.resume(router)

    def orphan(self, router: str) -> None:
        """The router's session has ended: nothing is computed for it until it asks again."""
        for part in self.of(router):
            part.orphan = True

    def abandon(self, router: str, keep: int | None) -> None:
        """End the router's orphans; with `keep`, only those of other incarnations than that."""
        for part in self.of(router):
            if part.rid.incarnation != keep if keep is not None else part.orphan:
                self.end(part, "orphaned")

    def fail(self, part: Part, reason: FailReason, detail: str) -> None:
        """Give the request up and say so. What is published stays cached."""
        self._site.count(f"failed_{reason}_total")
        message = Failed(part.rid, part.term, part.ticket, reason, detail)
        self._site.outbox.send(part.ask.router, message)
        self.end(part, f"failed: {reason}")

    def _trace(self, part: Part, error: str) -> None:
        """What it did as owner: main decode first computes what it lacks, then it draws, as a relay does."""
        if not part.owned_at:
            return
        journal, ask = self._site.journal, part.ask
        end = part.ended_at or journal.now
        drawn = part.first_at or end
        relay = self._site.role is Role.RELAY
        if not relay:
            journal.span("cut", ask.trace, part.rid, part.owned_at, drawn, term=part.own_term)
        name, start = ("relay decode", part.owned_at) if relay else ("main decode", drawn)
        journal.span(name, ask.trace, part.rid, start, end, error, tokens=part.made, term=part.own_term)

    def end(self, part: Part, outcome: str = "released") -> None:
        """Nothing of the request is left here but cache."""
        self._site.journal.write(
            "request",
            part.rid,
            part.ask.since,
            outcome,
            trace=part.ask.trace,
            term=part.term,
            stage=part.stage.value,
            prompt_tokens=part.ask.prompt_len,
            known_tokens=len(part.known),
            made_tokens=part.made,
        )
        self._trace(part, "" if outcome == "released" else outcome)
        del self._parts[part.rid]
        self._seats.leave(part)
        blocks = part.blocks
        if part.ticket and self._kv_in.get(part.ticket) is not None:
            blocks = self._kv_in.close(part.ticket)
        if blocks:
            self._site.pool.unpin(blocks)
        part.blocks = []
        for kind in ("backstop", "landing"):
            self._site.timers.clear((kind, part.rid))
