"""Which workers serve a request: candidates with the seconds each road needs, the best of them, and why not
the others.

Reads fleet and index, changes nothing. Prefers overlap through the bytes and tokens that it saves, spreads
by load, and counts the router's own placements beside the workers' reports.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.router.fleet import Fleet
from services.router.index import Index, Match
from services.router.wish import Candidate, NoRoad, Obstacle, Plan, Wish
from services.router.worker import PoolKey, Worker
from shared.policy.config import RouterPolicy, WorkerPolicy
from shared.policy.pipeline import (
    Pipeline,
    Roads,
    choose_pipeline,
    line_seconds,
    local_limit,
    prefill_seconds,
)
from shared.wire.messages import Role

TIE = 0.03
"""Roads whose cost differs by less than this part (and by 10 ms at least) are equal: overlap and load
decide.
"""


class Placement:
    """All methods are functions of the fleet and the index as they stand."""

    def __init__(self, policy: RouterPolicy, worker: WorkerPolicy, fleet: Fleet, index: Index) -> None:
        self._policy = policy
        self._worker = worker
        self._fleet = fleet
        self._index = index

    # --- whole roads ----------------------------------------------------------------------------------------

    def plan(self, now: float, pool: PoolKey, wish: Wish, sender: Worker | None = None) -> Plan | NoRoad:
        """The best main decode with its prefill and relay, judged by the index. `sender`: who will send, if
        known.
        """
        good: list[Candidate] = []
        bad: list[Candidate] = []
        for main in self._fleet.of(Role.MAIN, pool):
            obstacle = self._main_obstacle(now, main, wish)
            if obstacle is not None:
                bad.append(obstacle)
                continue
            match = self._index.match(main.node, wish.hashes)
            found = self.road(now, pool, wish, main, match, sender)
            (bad if found.pipeline is None else good).append(found)
        if not good:
            return no_road(bad, "there is no main decode worker")
        best = _best(good)
        assert best.pipeline is not None
        rejected = [one for one in good if one is not best] + bad
        return Plan(best, best.pipeline, best.reason, tuple(rejected))

    def road(
        self,
        now: float,
        pool: PoolKey,
        wish: Wish,
        main: Worker,
        match: Match,
        sender: Worker | None = None,
    ) -> Candidate:
        """The road to one main decode that holds `match`: from `sender`, or the best prefill. No pipeline:
        refused.
        """
        senders = self._prefills(now, pool, wish, main) if sender is None else [sender]
        roads = [self._with_prefill(now, pool, wish, main, match, one) for one in senders]
        if not roads:
            roads = [self._without_prefill(pool, wish, main, match)]
        passable = [road for road in roads if road.pipeline is not None]
        return _best(passable or roads)

    def _with_prefill(
        self, now: float, pool: PoolKey, wish: Wish, main: Worker, match: Match, prefill: Worker
    ) -> Candidate:
        t_prefill = self.prefill_end(now, pool, wish, prefill)
        line = self._fleet.line(prefill, main)
        outstanding = self._fleet.outstanding(line)
        missing = max(0, len(wish.hashes) - match.have - match.expected) * _block_bytes(main)
        landing = outstanding if match.expected else 0  # blocks on their way come with what waits already
        rate = self._fleet.lines.rate(line)
        t_line = max(line_seconds(outstanding, missing, rate, line.rtt), landing / rate if rate else 0.0)
        t_main = max(t_prefill, t_line)
        relay = self.relay(now, pool, wish, prefill, t_prefill) if wish.relay_allowed else None
        choice = choose_pipeline(
            self._policy,
            Roads(
                lacking_tokens=self._lacking(wish, match, pool),
                prefill_possible=True,
                line_up=True,
                local_allowed=wish.local_allowed,
                relay_allowed=wish.relay_allowed,
                t_main=t_main,
                t_relay=None if relay is None else relay[1],
                line_wait=0.0 if wish.patient else t_line,
                relay_output=0.0 if relay is None else wish.output * relay[0].step_seconds(),
                singular_allowed=wish.singular_allowed
                and relay is not None
                and self._singular_room(relay[0], wish),
            ),
            wish.deadline,
        )
        alone = choice.pipeline is Pipeline.MD
        if alone:
            t_main = t_prefill = self._local_seconds(wish, main, match, pool)
        return Candidate(
            node=main.node,
            role=str(Role.MAIN),
            reason=choice.reason,
            obstacle=None if choice.pipeline is not None else Obstacle.LINE,
            pipeline=choice.pipeline,
            prefill=None if alone else prefill.node,
            relay=None if relay is None or alone else relay[0].node,
            have=match.have,
            expected=match.expected,
            t_main=t_main,
            t_relay=None if relay is None else relay[1],
            t_prefill=t_prefill,
            load=main.load(),
            cost=t_prefill + t_main + self._decode_cost(now, main, wish),
            ample=self._ample(main, wish, match),
            wait=choice.wait,
        )

    def _without_prefill(self, pool: PoolKey, wish: Wish, main: Worker, match: Match) -> Candidate:
        """Main decode alone: no prefill worker can send to it."""
        prefills = self._fleet.of(Role.PREFILL, pool)
        up = any(self._fleet.connected(one.node, main.node) for one in prefills)
        lacking = self._lacking(wish, match, pool)
        roads = Roads(
            lacking_tokens=lacking, prefill_possible=bool(prefills) and up, line_up=up or not prefills
        )
        choice = choose_pipeline(self._policy, roads, wish.deadline)
        if choice.pipeline is not Pipeline.MD and lacking <= local_limit(
            self._policy, line_up=False, prefill_possible=False
        ):
            # Prefill workers are there and none can be used now.
            choice = choose_pipeline(
                self._policy,
                Roads(lacking_tokens=lacking, prefill_possible=False, line_up=True),
                wish.deadline,
            )
        seconds = self._local_seconds(wish, main, match, pool)
        passable = choice.pipeline is Pipeline.MD
        silent = any(worker.suspect or worker.announce is not None for worker in prefills)
        return Candidate(
            node=main.node,
            role=str(Role.MAIN),
            reason=choice.reason if passable else self._prefill_reasons(prefills, main) or choice.reason,
            obstacle=None if passable else (Obstacle.SILENT if silent else Obstacle.NONE),
            pipeline=Pipeline.MD if passable else None,
            have=match.have,
            expected=match.expected,
            t_main=seconds,
            t_prefill=seconds,
            load=main.load(),
            cost=2 * seconds,
            ample=self._ample(main, wish, match),
        )

    # --- one role -------------------------------------------------------------------------------------------

    def prefill(self, now: float, pool: PoolKey, wish: Wish, main: Worker | None) -> Worker | None:
        """The prefill worker whose prefill ends first, among those that can send to `main`."""
        found = self._prefills(now, pool, wish, main)
        if not found:
            return None
        return min(found, key=lambda one: (self.prefill_end(now, pool, wish, one), one.load(), one.node))

    def relay(
        self, now: float, pool: PoolKey, wish: Wish, prefill: Worker, t_prefill: float
    ) -> tuple[Worker, float] | None:
        """The relay that can begin first beside `prefill`, and when; None where none has room."""
        best: tuple[float, int, Worker] | None = None
        for relay in self._fleet.of(Role.RELAY, pool):
            if relay.node in wish.avoid or relay.why_not(now) or now < relay.full_until:
                continue
            if not self._fleet.connected(prefill.node, relay.node):
                continue
            have = self._index.match(relay.node, wish.hashes).have
            missing = len(wish.hashes) - have
            load = relay.owner_load()
            if (
                relay.free_blocks() < missing + self._growth_blocks(wish, pool)
                or load.running >= load.max_running
            ):
                continue
            line = self._fleet.line(prefill, relay)
            lan = line_seconds(
                self._fleet.outstanding(line),
                missing * _block_bytes(relay),
                self._fleet.lines.rate(line),
                line.rtt,
            )
            found = (max(t_prefill, lan), load.running, relay)
            if best is None or found[:2] < best[:2]:
                best = found
        return None if best is None else (best[2], best[0])

    def prefill_end(self, now: float, pool: PoolKey, wish: Wish, prefill: Worker) -> float:
        """Seconds until a prefill there has drawn its id."""
        block = pool.block_tokens
        cached = min(sum(self._index.match(prefill.node, wish.hashes)), (wish.tokens - 1) // block)
        queued = max(prefill.queued_tokens(), self._ramp(now, prefill, pool, "queued_tokens"))
        rate = prefill.prefill_rate(self._fleet.typical_rate(Role.PREFILL, pool))
        return prefill_seconds(queued, wish.tokens - cached * block, rate)

    def holder(self, now: float, pool: PoolKey, wish: Wish, target: Worker, upto: int) -> Worker | None:
        """A prefill worker that holds the first `upto` blocks and can send them to `target`."""
        for prefill in self._prefills(now, pool, wish, target):
            if self._index.match(prefill.node, wish.hashes[:upto]).have >= upto:
                return prefill
        return None

    def _prefills(self, now: float, pool: PoolKey, wish: Wish, main: Worker | None) -> list[Worker]:
        return [
            one
            for one in self._fleet.of(Role.PREFILL, pool)
            if one.node not in wish.avoid
            and one.why_not(now) is None
            and now >= one.full_until
            and (main is None or self._fleet.connected(one.node, main.node))
        ]

    # --- numbers --------------------------------------------------------------------------------------------

    def _main_obstacle(self, now: float, main: Worker, wish: Wish) -> Candidate | None:
        """Why a main decode cannot take the request; None where it may."""
        why, kind = main.why_not(now), Obstacle.SILENT
        announce = main.announce
        if why is None and announce is not None:
            need = self._need(main, wish)
            if wish.tokens >= announce.max_context:
                why = f"{wish.tokens} tokens, its context is {announce.max_context}"
                kind = Obstacle.TOO_LONG
            elif need[0] > announce.pool_blocks:
                why = f"needs {need[0]} blocks, its pool has {announce.pool_blocks}"
                kind = Obstacle.TOO_LONG
            elif main.node in wish.avoid:
                why, kind = "refused or failed this request", wish.avoid[main.node]
            elif now < main.full_until:
                why, kind = f"full for {main.full_until - now:.1f} s", Obstacle.FULL
            elif need[1] > main.free_blocks():
                why, kind = f"needs {need[1]} blocks, {main.free_blocks()} are free", Obstacle.FULL
        if why is None:
            return None
        return Candidate(main.node, str(Role.MAIN), why, kind)

    def _need(self, main: Worker, wish: Wish) -> tuple[int, int]:
        """Blocks that the request occupies there, and those of them that it does not hold yet."""
        assert main.pool is not None
        whole = len(wish.hashes) + self._growth_blocks(wish, main.pool)
        return whole, whole - self._index.match(main.node, wish.hashes).have

    def _growth_blocks(self, wish: Wish, pool: PoolKey) -> int:
        return -(-(wish.growth + wish.tokens - len(wish.hashes) * pool.block_tokens) // pool.block_tokens)

    def _lacking(self, wish: Wish, match: Match, pool: PoolKey) -> int:
        return wish.tokens - match.have * pool.block_tokens

    def _local_seconds(self, wish: Wish, main: Worker, match: Match, pool: PoolKey) -> float:
        rate = main.prefill_rate(self._fleet.typical_rate(Role.PREFILL, pool))
        return prefill_seconds(main.queued_tokens(), self._lacking(wish, match, pool), rate)

    def _decode_cost(self, now: float, main: Worker, wish: Wish) -> float:
        """Seconds that the load there adds to the answer."""
        assert main.announce is not None
        assert main.pool is not None
        load = max(main.load(), self._ramp(now, main, main.pool, "load"))
        slots = max(1, main.announce.max_running)
        queue = max(0.0, load + 1 - slots) / slots
        return wish.output * main.step_seconds() * (load / slots + queue)

    def _ample(self, main: Worker, wish: Wish, match: Match) -> bool:
        """Whether the last report leaves no doubt that it will admit (so that Prefill need not wait for its
        answer).
        """
        if main.report is None or main.announce is None:
            return False
        need = self._need(main, wish)[1]
        landing = main.report.promised_blocks + len(wish.hashes) - match.have
        half = self._worker.unlanded_fraction * main.announce.pool_blocks
        return 4 * main.free_blocks() >= 5 * need and (landing <= half or main.report.promised_blocks == 0)

    def _singular_room(self, relay: Worker, wish: Wish) -> bool:
        assert relay.announce is not None
        held = relay.singular_blocks()
        most = self._policy.singular_pool_fraction * relay.announce.pool_blocks
        return not held or held + len(wish.hashes) <= most

    def _ramp(self, now: float, worker: Worker, pool: PoolKey, what: str) -> float:
        """Load that a worker which has just joined is taken to have: its peers' mean, less and less of it."""
        age = now - worker.joined_at
        if age >= self._policy.join_ramp:
            return 0.0
        elders = [
            one
            for one in self._fleet.of(worker.role, pool)
            if one is not worker and now - one.joined_at >= self._policy.join_ramp
        ]
        if not elders:
            return 0.0
        mean = sum(one.load() if what == "load" else one.queued_tokens() for one in elders) / len(elders)
        return mean * (1 - age / self._policy.join_ramp)

    def _prefill_reasons(self, prefills: Iterable[Worker], main: Worker) -> str:
        parts = []
        for one in prefills:
            if not self._fleet.connected(one.node, main.node):
                parts.append(f"no KV session between {one.node} and {main.node}")
            else:
                parts.append(f"{one.node} cannot be used now")
        return ", ".join(parts)


def no_road(rejected: list[Candidate], nobody: str) -> NoRoad:
    """The answer where every candidate was rejected: the mildest obstacle tells what there is to hope for."""
    order = list(Obstacle)
    kinds = [one.obstacle for one in rejected if one.obstacle is not None]
    if not kinds:
        return NoRoad(Obstacle.NONE, tuple(rejected), details=nobody)
    waits = [one.wait for one in rejected if one.obstacle is Obstacle.LINE]
    return NoRoad(min(kinds, key=order.index), tuple(rejected), wait=min(waits, default=0.0), details=nobody)


def _best(roads: list[Candidate]) -> Candidate:
    """The cheapest; among equals the one with most overlap, then the least loaded."""
    cheapest = min(road.cost for road in roads)
    slack = max(0.01, TIE * cheapest)
    equal = [road for road in roads if road.cost <= cheapest + slack]
    return min(equal, key=lambda road: (-(road.have + road.expected), road.load, road.cost, road.node))


def _block_bytes(worker: Worker) -> int:
    return 0 if worker.announce is None else worker.announce.bytes_per_block
