"""One request as the router keeps it: its log, its legs, who draws, and what it waits for. A record with
rules of its own consistency; it sends nothing and decides nothing (steering does).
"""

from __future__ import annotations

from services.router.legs import Leg, LegState
from services.router.log import Log
from services.router.phases import Event, Phase, after
from services.router.request_trace import Stage, Trace
from services.router.requests import GenerationRequest
from services.router.wish import Obstacle
from services.router.worker import PoolKey
from shared.errors import MeshError
from shared.kv.hashing import chain_hashes
from shared.policy.pipeline import Pipeline
from shared.wire.messages import Rid, Sampling


class Request:
    """Terms only grow: `next_term` names one, `legs` remembers whose each is."""

    def __init__(
        self,
        rid: Rid,
        spec: GenerationRequest,
        sampling: Sampling,
        pool: PoolKey,
        root: bytes,
        now: float,
        deadline: float,
        tokens_ahead: int,
    ) -> None:
        self.rid = rid
        self.spec = spec
        self.sampling = sampling
        self.pool = pool
        self.deadline = deadline
        self.log = Log(spec.ids, sampling.max_pos, sampling.stop_ids, tokens_ahead)
        self.phase = Phase.PLACING
        self.trace = Trace(now, prompt_tokens=len(spec.ids), stages=[(Stage.QUEUE, now)])
        self._root = root
        self._hashes = chain_hashes(root, spec.ids, pool.block_tokens)
        self.prompt_blocks = len(self._hashes)
        # who takes part
        self.term = 0  # the last one named
        self.legs: dict[int, Leg] = {}
        self.main: Leg | None = None
        self.relay: Leg | None = None
        self.prefill: Leg | None = None
        self.owner: Leg | None = None  # the decoder that draws
        self.displaced: Leg | None = None  # a silent owner that `main` is to follow
        # the road
        self.pipeline: Pipeline | None = None
        self.planned = Pipeline.P_MD  # what the index promised
        self.settled = False
        self.singular = False
        self.singular_allowed = False
        self.predicted = 0  # output ids expected
        self.md_hit: int | None = None  # prompt blocks that main decode held at its first answer
        self.rounds = 0  # catch-up rounds that were answered
        self.round_open = False
        self.cut_due = False
        self.fresh = False  # ids have come just now: the best time for a cut
        self.relays = 0  # relays asked so far
        self.relay_off = False
        self.accepted = False  # the client was told that it is being served
        self.waiting = False  # for room, in the waiting room
        self.waits_until: float | None = None
        self.refusal: MeshError | None = None  # of one that was not accepted
        self.outcome = ""  # how it ended: a finish reason, `cancelled`, or an error's code
        # trouble
        self.avoid: dict[str, tuple[float, Obstacle]] = {}
        self.failures = 0  # since the last id
        self.losses = 0
        self.last_failure = ""
        self.hopeless = ""  # why no prefill worker will ever take it
        self.blocked_at: float | None = None
        self.blocked_why = ""
        self.blocked_by: Obstacle | None = None
        self.retry_at: float | None = None
        self.start_relay_at: float | None = None
        self.closing_at: float | None = None
        self.resumes = 0

    # --- the log and its blocks -----------------------------------------------------------------------------

    @property
    def made(self) -> int:
        """Output ids so far."""
        return self.log.made

    def hashes(self, tokens: int) -> list[bytes]:
        """Chain hashes of the full blocks of the log's first `tokens`."""
        blocks = tokens // self.pool.block_tokens
        if blocks > len(self._hashes):
            self._hashes = chain_hashes(
                self._root, self.log.ids[:tokens], self.pool.block_tokens, self._hashes
            )
        return self._hashes[:blocks]

    def blocks(self, tokens: int) -> int:
        """Full blocks of so many tokens."""
        return tokens // self.pool.block_tokens

    def staged(self, now: float) -> None:
        """Note what its time goes into now. That main decode has drawn is noted where its ids come in."""
        trace = self.trace
        match self.phase:
            case Phase.PLACING:
                trace.enter(Stage.QUEUE, now)
            case Phase.PREFILLING:
                trace.enter(Stage.PREFILL, now)
            case Phase.PAUSED:
                trace.enter_wait(now, relay=self.relay is not None)
            case Phase.RELAYING | Phase.CATCHING_UP:
                trace.enter(Stage.RELAY, now)
            case _:
                pass

    # --- legs -----------------------------------------------------------------------------------------------

    def next_term(self) -> int:
        self.term += 1
        return self.term

    def live_legs(self) -> list[Leg]:
        """Every leg that still has a part, each once."""
        seen: dict[int, Leg] = {}
        for leg in self.legs.values():
            if leg.live:
                seen[id(leg)] = leg
        return list(seen.values())

    def decoders(self) -> list[Leg]:
        """The standing main decode and relay, where they live."""
        return [leg for leg in (self.main, self.relay) if leg is not None and leg.live]

    def on(self, node: str) -> list[Leg]:
        """Live legs on one node."""
        return [leg for leg in self.live_legs() if leg.node == node]

    @property
    def drawing(self) -> Leg | None:
        """The leg that is to draw the log's next id."""
        if self.phase is Phase.PREFILLING:
            return self.prefill
        return self.owner

    def is_over(self) -> bool:
        """Whether the client has got its last event."""
        return self.phase in (Phase.CLOSING, Phase.ENDED)

    def move(self, event: Event) -> None:
        """Change phase by the table."""
        self.phase = after(self.phase, event)

    def detach(self, leg: Leg) -> None:
        """Forget a leg that is out, wherever it stood; the phase moves where it drew."""
        was_drawing = leg is self.drawing
        if leg is self.main:
            self.main = None
            self.settled = False
            self.round_open = self.cut_due = False
            self.rounds = 0
            if self.phase is Phase.CATCHING_UP and leg is not self.owner:
                self.move(Event.STANDBY_OUT)
        if leg is self.relay:
            self.relay = None
            self.start_relay_at = None
            if self.log.following and self.log.following == leg.term:
                self.log.follow(0)
        if leg is self.prefill:
            self.prefill = None
        if leg is self.displaced:
            self.displaced = None
        if leg is self.owner:
            self.owner = None
        if was_drawing:
            self.move(Event.OWNER_OUT)

    # --- trouble --------------------------------------------------------------------------------------------

    def shun(self, node: str, until: float, why: Obstacle = Obstacle.FULL) -> None:
        """Do not ask a node again before `until`."""
        self.avoid[node] = (until, why)

    def heard(self, node: str) -> None:
        """A silent node gives signs of life: it may be asked again."""
        if node in self.avoid and self.avoid[node][1] is Obstacle.SILENT:
            del self.avoid[node]

    def shunned(self, now: float) -> dict[str, Obstacle]:
        """Nodes not to be asked now."""
        return {node: why for node, (until, why) in self.avoid.items() if until > now}

    def progressed(self) -> None:
        """Ids were appended: what went wrong before is forgiven."""
        self.failures = self.losses = self.resumes = 0
        self.blocked_at = None

    # --- time -----------------------------------------------------------------------------------------------

    def wake_at(self, now: float, admit_timeout: float, gap_wait: float, replace_wait: float) -> float:
        """When this request wants to be looked at, whatever comes. What was due by now has been looked at."""
        times = [self.deadline]
        asked = (leg.asked_at for leg in self.decoders() if leg.state is LegState.ASKED)
        times += [at + admit_timeout for at in asked]
        if self.log.gap_since is not None:
            times.append(self.log.gap_since + gap_wait)
        if self.blocked_at is not None:
            times.append(self.blocked_at + replace_wait)
        times += [at for at in self._dates() if at is not None]
        return min((at for at in times if at > now), default=now + 1.0)

    def _dates(self) -> tuple[float | None, ...]:
        return (
            self.retry_at,
            self.start_relay_at,
            self.closing_at,
            self.waits_until if self.waiting else None,
        )
