"""Prefill requests at P: queued, running, done, and then only sending. One id is drawn; the rest is the
senders' work.

Knows how a request stands, not how its blocks travel: `kv_out` pins and sends them.
"""

from __future__ import annotations

from shared.engine.events import Fault, Finished, Sampled, Scored
from shared.engine.sequence import Goal, SequenceSpec
from shared.wire.messages import (
    Attach,
    Failed,
    FailReason,
    FinishReason,
    Prefill,
    Refused,
    RefuseReason,
    Resume,
    Rid,
    Role,
    TokenLogprob,
)
from shared.wire.messages import Finished as FinishedMessage
from shared.worker import asked
from shared.worker.admission import Refusal
from shared.worker.asked import BadAsk
from shared.worker.kv_out import KvOut
from shared.worker.prefill_gate import PrefillGate
from shared.worker.prefill_queue import PrefillQueue
from shared.worker.prompt import Prompt
from shared.worker.sources import SourceState
from shared.worker.worker_site import Site


class Prefilling:
    """All prefills of this worker; the `Source` of its transfers."""

    def __init__(self, site: Site, out: KvOut) -> None:
        self._site = site
        self._out = out
        self._gate = PrefillGate(site, out)
        self._prompts: dict[Rid, Prompt] = {}
        self._by_seq: dict[int, Rid] = {}
        self._queue = PrefillQueue(site.pool, site.block_tokens)
        self._number = 0
        self._paused: set[str] = set()  # routers that are silent
        self._news = 0  # grows with everything that may let a waiting prefill start
        self._tried: tuple[int, int] | None = None  # pool and news when the queue was looked at last

    def __len__(self) -> int:
        return len(self._prompts)

    # --- as a source ----------------------------------------------------------------------------------------

    def state(self, rid: Rid) -> SourceState:
        prompt = self._prompts.get(rid)
        return SourceState.GONE if prompt is None else prompt.state

    def hashes(self, rid: Rid) -> list[bytes]:
        prompt = self._prompts.get(rid)
        return [] if prompt is None else prompt.ask.hashes

    def term(self, rid: Rid) -> int:
        prompt = self._prompts.get(rid)
        return 0 if prompt is None else prompt.ask.term

    def prompt_len(self, rid: Rid) -> int:
        prompt = self._prompts.get(rid)
        return 0 if prompt is None else prompt.ask.prompt_len

    def all(self) -> list[Rid]:
        return list(self._prompts)

    def _of(self, router: str) -> list[Prompt]:
        return [prompt for prompt in self._prompts.values() if prompt.ask.router == router]

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def queued_tokens(self) -> int:
        """Known tokens of prefills that wait here, not in the engine."""
        return self._queue.tokens

    # --- Prefill --------------------------------------------------------------------------------------------

    def on_prefill(self, now: float, router: str, message: Prefill, payload: bytes) -> None:
        """Take a prefill in, or refuse it. Again for the same rid with a newer term: from the start."""
        known = self._prompts.get(message.rid)
        if known is not None and message.term <= known.ask.term:
            self._site.count("old_term_total")
            return
        if known is not None:
            self._end(known, "asked again")
        try:
            ask = asked.read(self._site, now, router, message, payload)
        except BadAsk as error:
            self._refuse(router, message, Refusal(RefuseReason.BAD_REQUEST, 0.0, str(error)))
            return
        refusal = self._gate.refusal(ask, len(self._queue))
        if refusal is None and self._gate.behind:
            self._loosen(self._site.pool.total)
            refusal = self._gate.backlog(ask) if self._gate.behind else None
        if refusal is not None:
            self._refuse(router, message, refusal)
            return
        self._number += 1
        prompt = self._prompts[ask.rid] = Prompt(ask, self._number)
        self._queue.push(prompt)
        self._news += 1
        self._site.count("prefills_total")
        self._site.timers.set(("backstop", ask.rid), ask.deadline)

    def _refuse(self, router: str, message: Prefill, refusal: Refusal) -> None:
        self._site.count("prefills_refused_total")
        retry = int(1e3 * refusal.retry_after)
        self._site.outbox.send(
            router, Refused(message.rid, message.term, refusal.reason, retry, refusal.detail)
        )

    # --- queued -> running ----------------------------------------------------------------------------------

    def on_stored(self) -> None:
        """Blocks were published: one that waits for others' blocks may have what it lacked."""
        self._news += 1

    def start_queued(self, now: float) -> None:
        """Give waiting prefills their blocks and pass them to the engine, most urgent first, while that
        goes.
        """
        if self._tried == (self._site.pool.gains, self._news) or not len(self._queue):
            return
        for prompt in self._queue:
            if len(self._by_seq) >= self._site.policy.max_running:
                break
            if self._queue.waits(prompt):
                continue
            if not self._start(now, prompt):
                break  # nobody passes it: blocks come free in time
            self._queue.remove(prompt)
        self._tried = (self._site.pool.gains, self._news)

    def _start(self, now: float, prompt: Prompt) -> bool:
        site, ask = self._site, prompt.ask
        most = (len(ask.ids) - 1) // site.block_tokens
        # Cached blocks have no scores: a prompt whose scores are wanted is computed from its beginning.
        blocks = site.pool.match(ask.hashes[:most]) if ask.scores < 0 else []
        need = site.blocks_for(len(ask.ids)) - len(blocks)
        short = need + site.pool.loose(blocks) - site.pool.available
        if short > 0:
            self._loosen(short)
            short = need + site.pool.loose(blocks) - site.pool.available
        if short > 0:
            self._out.alignments.make_room(short)
            if need + site.pool.loose(blocks) > site.pool.available:
                return False
        site.pool.pin(blocks)
        spec = SequenceSpec(
            ids=ask.ids,
            prompt_len=ask.prompt_len,
            params=ask.params,
            root=ask.root,
            hashes=ask.hashes,
            blocks=blocks,
            goal=Goal.PREFILL,
            priority=ask.priority,
            scores=ask.scores,
        )
        prompt.cached = len(blocks)
        prompt.begun_at = now
        site.count("prompt_tokens_total", len(ask.ids))
        site.count("prompt_tokens_cached_total", len(blocks) * site.block_tokens)
        prompt.seq = site.engine.add(spec, now)
        self._by_seq[prompt.seq] = ask.rid
        if prompt.orphan or ask.router in self._paused:
            site.engine.pause(prompt.seq)
        else:
            self._queue.makes(prompt)
        prompt.state = SourceState.RUNNING
        self._out.source_changed(ask.rid)
        return True

    # --- Attach ---------------------------------------------------------------------------------------------

    def on_attach(self, attach: Attach, *, opened: bool) -> None:
        """A target was attached: a relay is to have the first id; after main decode only a relay can
        follow.
        """
        prompt = self._prompts.get(attach.rid)
        if prompt is None:
            return
        role = self._site.peers.role(attach.target)
        if role is Role.RELAY:
            if attach.first:
                prompt.relays[attach.ticket] = attach.target
                self._tell_relays(prompt)
        elif opened:
            prompt.attached = True

    def on_peer(self, node: str) -> None:
        """A session has opened: a relay there may wait for its First."""
        for prompt in self._prompts.values():
            if node in prompt.relays.values():
                self._tell_relays(prompt)

    def _tell_relays(self, prompt: Prompt) -> None:
        for ticket, node in prompt.relays.items():
            first = prompt.first(ticket)
            if first is not None and ticket not in prompt.told and self._site.peers.get(node) is not None:
                prompt.told.add(ticket)
                self._site.outbox.send(node, first)

    # --- engine ---------------------------------------------------------------------------------------------

    def on_scored(self, event: Scored) -> None:
        """Log-probabilities of the prompt's ids: they go to the router with the drawn one."""
        prompt = self._prompts[self._by_seq[event.seq]]
        prompt.scores += [TokenLogprob(logprob, top) for logprob, top in event.scores]

    def on_sampled(self, now: float, event: Sampled) -> None:
        """The one id: to the router and the relays; the blocks wait for an Attach or go on being sent."""
        prompt = self._prompts[self._by_seq[event.seq]]
        prompt.drawn = (event.id, asked.wire_logprob(event.logprob, event.top))
        prompt.begun_at = self._site.engine.begun(event.seq) or now
        self._emit(prompt)
        self._tell_relays(prompt)
        self._done(now, prompt)
        self._trace(now, prompt)

    def _trace(self, now: float, prompt: Prompt, error: str = "") -> None:
        """How long it waited and was computed."""
        journal, ask = self._site.journal, prompt.ask
        begun = prompt.begun_at or now
        cached = prompt.cached * self._site.block_tokens
        journal.span("queue", ask.trace, ask.rid, ask.since, begun)
        if prompt.begun_at:
            journal.span(
                "prefill", ask.trace, ask.rid, begun, now, error, tokens=len(ask.ids), cached_tokens=cached
            )

    def on_finished(self, event: Finished) -> None:
        """The drawn id ends the request: the router counts it with this term."""
        prompt = self._prompts[self._by_seq[event.seq]]
        ask = prompt.ask
        reason = FinishReason(event.reason)
        self._site.outbox.send(ask.router, FinishedMessage(ask.rid, ask.term, event.at, reason))

    def on_fault(self, event: Fault) -> None:
        prompt = self._prompts[self._by_seq[event.seq]]
        self.fail(prompt.ask.rid, FailReason(event.reason), event.detail)

    def settle(self) -> None:
        """After a step: sequences that have drawn leave the engine."""
        for prompt in [self._prompts[rid] for rid in self._by_seq.values()]:
            if prompt.state is SourceState.DONE:
                self._leave_engine(prompt)

    def has(self, seq: int) -> bool:
        return seq in self._by_seq

    def _emit(self, prompt: Prompt) -> None:
        if prompt.row is not None:
            self._site.outbox.row(prompt.ask.router, prompt.row)

    def _done(self, now: float, prompt: Prompt) -> None:
        """Keep the blocks for an Attach that has not come; those of open transfers have their own pins."""
        site = self._site
        pool, hashes = site.pool, prompt.ask.hashes
        if prompt.seq is not None:
            # A twin's published block may have gone since: this copy stands in for it.
            for index, block in enumerate(site.engine.blocks(prompt.seq)[: len(hashes)]):
                if pool.hash_of(block) is None and pool.find(hashes[index]) is None:
                    pool.publish(block, hashes[index], hashes[index - 1] if index else None)
        prompt.state = SourceState.DONE
        self._out.source_changed(prompt.ask.rid)
        prompt.hold = [block for block in pool.match(hashes) if self._out.pins.pin(block)]
        site.timers.set(("hold", prompt.ask.rid), now + site.policy.attach_wait)

    def _leave_engine(self, prompt: Prompt) -> None:
        if prompt.seq is not None:
            del self._by_seq[prompt.seq]
            self._site.engine.end(prompt.seq)
            prompt.seq = None
            self._queue.rests(prompt)
            self._news += 1

    # --- ends -----------------------------------------------------------------------------------------------

    def on_hold_over(self, now: float, rid: Rid) -> None:
        """No Attach has come: the blocks are ordinary cache from now on. A silent router gets more time."""
        prompt = self._prompts.get(rid)
        if prompt is None:
            return
        if self._site.peers.is_suspect(prompt.ask.router):
            self._site.timers.set(("hold", rid), now + self._site.policy.attach_wait)
        else:
            self._let_go(prompt)

    def _loosen(self, blocks: int) -> None:
        """Let go of holds that main decode needs no more, until `blocks` more are to be had or none is
        left.
        """
        wanted = self._site.pool.available + blocks
        for prompt in list(self._prompts.values()):
            if self._site.pool.available >= wanted:
                return
            if prompt.attached and prompt.hold:
                self._let_go(prompt)

    def _let_go(self, prompt: Prompt) -> None:
        self._out.pins.unpin(prompt.hold)
        prompt.hold = []
        self._site.timers.clear(("hold", prompt.ask.rid))

    def on_resume(self, message: Resume) -> None:
        """Repeat the drawn id."""
        prompt = self._prompts.get(message.rid)
        if prompt is not None and message.start <= len(prompt.ask.ids):
            self._emit(prompt)

    def release(self, rid: Rid) -> None:
        """The request is over here; its transfers are the caller's to end or to align."""
        prompt = self._prompts.get(rid)
        if prompt is not None:
            self._end(prompt)

    def pause(self, router: str) -> None:
        """The router is silent: nothing of its requests is computed; all is kept."""
        self._paused.add(router)
        for prompt in self._of(router):
            if prompt.seq is not None:
                self._site.engine.pause(prompt.seq)
                self._queue.rests(prompt)
        self._news += 1

    def resume(self, router: str) -> None:
        """The router is back."""
        self._paused.discard(router)
        for prompt in self._of(router):
            if prompt.seq is not None and not prompt.orphan:
                self._site.engine.resume(prompt.seq)
                self._queue.makes(prompt)

    def orphan(self, router: str) -> None:
        """The router's session has ended: it asks again by a new Prefill or not at all."""
        for prompt in self._of(router):
            prompt.orphan = True

    def abandon(self, router: str, keep: int | None) -> None:
        """End the router's orphans; with `keep`, only those of other incarnations than that."""
        for prompt in self._of(router):
            rid = prompt.ask.rid
            if rid.incarnation != keep if keep is not None else prompt.orphan:
                for transfer in self._out.of(rid):
                    if transfer.ticket not in self._out.alignments:
                        self._out.close(transfer)
                self._end(prompt, "orphaned")

    def fail(self, rid: Rid, reason: FailReason, detail: str) -> None:
        """Give the request up and say so; its transfers end."""
        prompt = self._prompts.get(rid)
        if prompt is None:
            return
        for transfer in self._out.of(rid):
            self._out.close(transfer)
        self._site.count(f"failed_{reason}_total")
        self._site.outbox.send(prompt.ask.router, Failed(rid, prompt.ask.term, b"", reason, detail))
        self._end(prompt, f"failed: {reason}")

    def _end(self, prompt: Prompt, outcome: str = "released") -> None:
        rid = prompt.ask.rid
        if prompt.state is SourceState.QUEUED:
            self._queue.remove(prompt)
        if prompt.seq is not None and prompt.drawn is None:
            wasted = self._site.engine.computed(prompt.seq) - prompt.cached * self._site.block_tokens
            self._site.count("prefill_wasted_tokens_total", max(wasted, 0))
        self._site.journal.write(
            "request",
            rid,
            prompt.ask.since,
            outcome,
            trace=prompt.ask.trace,
            term=prompt.ask.term,
            stage=prompt.state.value,
            prompt_tokens=prompt.ask.prompt_len,
            known_tokens=len(prompt.ask.ids),
            cached_tokens=prompt.cached * self._site.block_tokens,
        )
        if prompt.drawn is None:
            self._trace(self._site.journal.now, prompt, outcome)
        self._leave_engine(prompt)
        self._let_go(prompt)
        self._site.timers.clear(("backstop", rid))
        del self._prompts[rid]
