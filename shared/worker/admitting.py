"""Admit: a request comes to a decoder, or comes again because its sender was lost. Answered exactly once."""

from __future__ import annotations

from shared.wire.messages import Admit, Admitted, Do, Have, Purpose, Refused, RefuseReason
from shared.worker import asked
from shared.worker.admission import Admission, Need, Refusal
from shared.worker.asked import Asked, BadAsk
from shared.worker.decoding import Decoding
from shared.worker.known import Known
from shared.worker.kv_in import KvIn
from shared.worker.part import Part, Stage, Told
from shared.worker.worker_site import Site

MOST_HELD = 1 << 16
"""Fed ids of one request that may wait for a gap in the log."""


class Admitting:
    """Takes requests in for `decoding`, and re-warming for `kv_in`."""

    def __init__(self, site: Site, kv_in: KvIn, decoding: Decoding) -> None:
        self._site = site
        self._kv_in = kv_in
        self._decoding = decoding
        self._admission = Admission(site, kv_in)
        self._number = 0

    def on_admit(self, now: float, node: str, message: Admit, payload: bytes) -> None:
        """Admitted with a new ticket, or Refused. The same rid again keeps the pins of what has landed and
        the fed ids.
        """
        earlier = self._decoding.get(message.rid)
        warm = message.purpose is Purpose.WARM
        try:
            ask = asked.read(self._site, now, node, message, payload)
        except BadAsk as error:
            self._refuse(node, message, Refusal(RefuseReason.BAD_REQUEST, 0.0, str(error)))
            return
        if earlier is None:
            refusal = self._admission.before(ask, len(self._decoding))
            if refusal is not None:
                self._refuse(node, message, refusal)
                return
        pool = self._site.pool
        blocks = pool.match(ask.hashes)
        pool.pin(blocks)
        if earlier is not None:
            self._decoding.end(earlier, "admitted again")
        self._kv_in.drop_aligned(ask.rid)
        yields = warm or message.parked
        need = self._admission.need(ask, len(blocks), yields=yields, warm=warm)
        refusal = self._admission.after(need)
        if refusal is not None:
            pool.unpin(blocks)
            self._refuse(node, message, refusal)
            return
        self._site.count("admitted_total")
        if warm:
            self._warm(now, ask, need, blocks)
        else:
            self._site.count("prompt_tokens_total", len(ask.ids))
            self._site.count("prompt_tokens_cached_total", len(blocks) * self._site.block_tokens)
            self._take_in(now, ask, need, blocks, earlier, yields=yields)

    def _refuse(self, node: str, message: Admit, refusal: Refusal) -> None:
        self._site.count(f"refused_{refusal.reason}_total")
        retry = int(1e3 * refusal.retry_after)
        self._site.outbox.send(
            node, Refused(message.rid, message.term, refusal.reason, retry, refusal.detail)
        )

    def _take_in(
        self,
        now: float,
        ask: Asked,
        need: Need,
        blocks: list[int],
        earlier: Part | None,
        *,
        yields: bool,
    ) -> None:
        self._number += 1
        number = self._number if earlier is None else earlier.number
        part = Part(
            ask=ask,
            number=number,
            purpose=Purpose.SERVE,
            known=Known(ask.ids, MOST_HELD),
            upto=len(ask.hashes),
            stage=Stage.LANDING,
        )
        if earlier is not None and not earlier.owns:
            self._carry_over(earlier, part)
        self._site.pool.promise(part.growth, need.growth)
        self._decoding.join(part)
        if ask.alone and ask.lacks(need.have * self._site.block_tokens) <= ask.alone:
            self._begin(now, part, need, blocks)
            return
        if need.missing or need.expected:
            arrival = self._kv_in.open(
                ask.rid, ask.router, ask.hashes, blocks, yields=yields, trace=ask.trace
            )
            part.ticket = arrival.ticket
            self._answer(ask, need, part.ticket)
            return
        self._answer(ask, need, b"")
        self._complete(ask)
        part.blocks = blocks
        self._decoding.tell(now, part, Told.LANDED)

    def _begin(self, now: float, part: Part, need: Need, blocks: list[int]) -> None:
        """It lacks so little that it draws at once: blocks on their way under other tickets are not waited
        for.
        """
        pool = self._site.pool
        pool.promise(part.growth, min(need.missing + need.expected, max(0, pool.available)))
        self._site.count("begun_alone_total")
        self._answer(part.ask, need, b"", alone=True)
        part.blocks = blocks
        part.want, part.own_term = Do.OWN, part.ask.term
        self._decoding.tell(now, part, Told.LANDED)

    def _carry_over(self, earlier: Part, part: Part) -> None:
        """A standby that comes again keeps what the router has told it; an owner's own ids may not be in
        the log.
        """
        length = len(part.ask.ids)
        if earlier.known.ids[:length] == part.ask.ids:
            part.known.merge(length, earlier.known.ids[length:])
        part.fed_term = earlier.fed_term
        if earlier.want is Do.OWN:
            part.want, part.own_term = earlier.want, earlier.own_term

    def _warm(self, now: float, ask: Asked, need: Need, blocks: list[int]) -> None:
        """Re-warming: only the ticket lives, as an alignment."""
        if not need.missing and not need.expected:
            self._site.pool.unpin(blocks)
            self._answer(ask, need, b"")
            self._complete(ask)
            return
        ticket = self._kv_in.open(ask.rid, ask.router, ask.hashes, blocks, yields=True).ticket
        self._answer(ask, need, ticket)
        self._kv_in.align(now, ticket, len(ask.hashes))

    def _answer(self, ask: Asked, need: Need, ticket: bytes, *, alone: bool = False) -> None:
        self._site.outbox.send(
            ask.router,
            Admitted(
                rid=ask.rid,
                term=ask.term,
                ticket=ticket,
                have=need.have,
                expected=need.expected,
                upto=len(ask.hashes),
                last_hash=ask.hashes[-1] if ask.hashes else b"",
                incarnation=self._site.incarnation,
                alone=alone,
            ),
        )

    def _complete(self, ask: Asked) -> None:
        """Nothing is missing: complete at once."""
        have = Have(b"", ask.rid, published=len(ask.hashes), complete=True)
        self._site.outbox.send(ask.router, have)
