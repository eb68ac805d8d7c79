"""How a request comes in: checked, given a pool and a name, placed or sent to the waiting room, or refused
at once.
"""

from __future__ import annotations

from services.router.admission import LET_WAIT, Admission
from services.router.admissions import Admissions
from services.router.lifecycle import Request
from services.router.mesh import Mesh
from services.router.prediction import OutputPrediction, SingularMemory
from services.router.requests import GenerationRequest
from services.router.sources import Sources
from services.router.watch import Watch
from services.router.wish import Plan
from services.router.worker import PoolKey
from shared.errors import ContextTooLong, InvalidRequest, Unavailable
from shared.kv.hashing import chain_root
from shared.wire.messages import Rid

ROOM_TRIES = 8
"""Waiting requests that may find no room at one event before the rest goes on waiting."""


class Gate:
    """Makes requests. `incarnation` is the router's: request ids are (incarnation, counter)."""

    def __init__(
        self,
        mesh: Mesh,
        requests: dict[Rid, Request],
        admissions: Admissions,
        prediction: OutputPrediction,
        singular: SingularMemory,
        sources: Sources,
        watch: Watch,
        incarnation: int,
    ) -> None:
        self._mesh = mesh
        self._requests = requests
        self._admissions = admissions
        self._prediction = prediction
        self._singular = singular
        self._sources = sources
        self._watch = watch
        self._incarnation = incarnation
        self._counter = 0

    def submit(self, now: float, spec: GenerationRequest) -> Rid:
        """Take a request. Raises InvalidRequest, Overloaded or Unavailable where it cannot be served now."""
        pools = self._pools(spec)
        self._admissions.of(spec.model).check(now, len(self._requests))
        r = self._new_request(now, spec, pools)
        self._watch.look(now, r)
        if r.refusal is not None:
            self._mesh.count("requests_refused_total")
            raise r.refusal
        r.accepted = True
        self._mesh.count("requests_total")
        return r.rid

    def new_rid(self) -> Rid:
        """A name that was never used."""
        self._counter += 1
        return Rid(self._incarnation, self._counter)

    def serve_waiting(self, now: float) -> None:
        """Place requests that wait for room, in their turn, until some of them have found none."""
        for admission in self._admissions.all():
            if len(admission.room):
                self._serve(now, admission)

    def _serve(self, now: float, admission: Admission) -> None:
        room = admission.room
        tried: set[Rid] = set()
        rid = self._overdue(now, admission) or room.peek()
        while rid is not None and len(tried) < ROOM_TRIES:
            r = self._requests[rid]
            r.waiting, r.retry_at = False, None
            self._watch.look(now, r)
            if r.waiting:
                tried.add(rid)
            else:
                admission.leave(now, rid, served=True)
            rid = room.after(tried) if tried else room.peek()

    def _overdue(self, now: float, admission: Admission) -> Rid | None:
        """The request that has waited longest, where that is longer than anybody was let in for: what it
        waits for comes so seldom that others take it.
        """
        rid = admission.room.oldest()
        r = None if rid is None else self._requests[rid]
        if r is None or r.waits_until is None:
            return None
        left = self._mesh.policy.queue_wait * (1 - LET_WAIT)
        return rid if r.waits_until - now < left else None

    def _pools(self, spec: GenerationRequest) -> list[PoolKey]:
        if not spec.ids:
            raise InvalidRequest("the prompt has no tokens", "prompt")
        if spec.sampling.max_pos <= len(spec.ids):
            raise InvalidRequest("max_tokens has to be at least 1", "max_tokens")
        pools = self._mesh.fleet.pools(spec.model)
        if not pools:
            which = f" that serves {spec.model!r}" if spec.model else ""
            raise Unavailable(f"no worker{which} has joined this router yet", 2.0)
        return pools

    def _new_request(self, now: float, spec: GenerationRequest, pools: list[PoolKey]) -> Request:
        policy = self._mesh.policy
        self._check_length(spec)
        deadline = now + (spec.deadline or policy.default_deadline)
        rid = self.new_rid()
        for pool in pools:
            root = chain_root(pool.fingerprint, pool.layout, spec.salt)
            r = Request(rid, spec, spec.sampling, pool, root, now, deadline, policy.tokens_ahead)
            r.predicted = self._prediction.predict(spec.kind, spec.session, r.log.max_pos - len(spec.ids))
            r.singular_allowed = spec.singular_allowed and self._singular.allows(r.hashes(len(spec.ids)))
            r.trace.kv_bytes_full = r.prompt_blocks * self._mesh.fleet.block_bytes(pool)
            if pool is pools[-1] or self._has_road(now, r):
                break
        self._requests[rid] = r
        return r

    def _has_road(self, now: float, r: Request) -> bool:
        """Whether a pool can take the request now; asked only where there are several."""
        wish = self._sources.wish(now, r, len(r.log))
        return isinstance(self._mesh.placement.plan(now, r.pool, wish), Plan)

    def _check_length(self, spec: GenerationRequest) -> None:
        """Refuse at once what no main decode could ever finish."""
        context, whole, length = (
            self._mesh.fleet.max_context(spec.model),
            spec.sampling.max_pos,
            len(spec.ids),
        )
        if context and whole > context:
            raise ContextTooLong(
                f"prompt and answer together may have {context} tokens here, the most that a main decode "
                f"worker's context and pool hold, and the request has {whole} ({length} in the prompt, "
                f"{whole - length} in the answer)"
            )
