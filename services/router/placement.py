"""Which workers serve a request: candidates with the seconds each road needs, the best of them, and why not
the others.

Reads fleet and index, changes nothing. Prefers overlap through the bytes and tokens that it saves, spreads
by load, and counts the router's own placements beside the workers' reports.
"""

from __future__ import annotations

import math
from heapq import nsmallest

from services.router.fleet import Fleet
from services.router.index import Index, Match
from services.router.survey import Survey
from services.router.wish import Candidate, Demand, NoRoad, Obstacle, Plan, Wish
from services.router.worker import PoolKey, Worker
from shared.policy.config import RouterPolicy, WorkerPolicy
from shared.policy.pipeline import Choice, Pipeline, Roads, choose_pipeline
from shared.wire.messages import Role

MOST_SENDERS = 3
"""Prefill workers that are looked at closely for each main decode: those whose blocks are there first."""

LINE_USE = 0.5
"""Part of the time for which a transfer keeps the line busy that counts against a road though nobody may
wait for it: others will.
"""

TIE = 0.03
"""Roads whose cost differs by less than this part (or 10 ms) are equal: overlap and load decide."""


SEATS = 1.5
"""Requests that a main decode is given, as a part of those that it runs at once: some are still being
prefilled or are on the line."""

WHY_NOT = {"draining": Obstacle.NONE, "failing": Obstacle.FULL}
"""What there is to hope for from a worker that gets no new work; others may give signs of life again."""


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
        known."""
        survey = self._survey(now, pool, wish)
        good: list[Candidate] = []
        bad: list[Candidate] = []
        for main in self._fleet.of(Role.MAIN, pool):
            found = self._obstacle(survey, main)
            if found is None:
                found = self._road(survey, main, survey.match(main.node), sender)
            (bad if found.pipeline is None else good).append(found)
        if not good:
            return _no_road(bad, "there is no main decode worker", survey.demand())
        best = _best(good)
        rejected = [one for one in good if one is not best] + bad
        return Plan(best, best.pipeline or Pipeline.P_MD, best.reason, tuple(rejected))

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
        return self._road(self._survey(now, pool, wish), main, match, sender)

    # --- one role -------------------------------------------------------------------------------------------

    def prefill(self, now: float, pool: PoolKey, wish: Wish, target: Worker | None) -> Worker | None:
        """The prefill worker whose prefill ends first, among those that can send to `target`."""
        survey = self._survey(now, pool, wish)
        found = survey.senders(target)
        return min(found, key=lambda one: (survey.prefill_end(one), one.load(), one.node), default=None)

    def prefill_end(self, now: float, pool: PoolKey, wish: Wish, prefill: Worker) -> float:
        """Seconds until a prefill there has drawn its id."""
        return self._survey(now, pool, wish).prefill_end(prefill)

    def relay(self, now: float, pool: PoolKey, wish: Wish, prefill: Worker) -> Worker | None:
        """The relay that can begin first beside a prefill worker; None where none has room."""
        found = self._survey(now, pool, wish).relay(prefill)
        return None if found is None else found[0]

    def holder(self, now: float, pool: PoolKey, wish: Wish, target: Worker, upto: int) -> Worker | None:
        """A prefill worker that holds the first `upto` blocks and can send them to `target`."""
        survey = self._survey(now, pool, wish)
        for prefill in survey.senders(target):
            if survey.match(prefill.node).have >= upto:
                return prefill
        return None

    # --- candidates -----------------------------------------------------------------------------------------

    def _survey(self, now: float, pool: PoolKey, wish: Wish) -> Survey:
        return Survey(now, pool, wish, self._fleet, self._index, self._policy)

    def _road(self, survey: Survey, main: Worker, match: Match, sender: Worker | None) -> Candidate:
        senders = [sender] if sender is not None else survey.senders(main)
        if len(senders) > MOST_SENDERS:
            senders = nsmallest(MOST_SENDERS, senders, key=lambda one: survey.arrival(one, main, match))
        roads = [self._with_prefill(survey, main, match, one) for one in senders]
        if not roads:
            roads = [self._without_prefill(survey, main, match)]
        best = _best([road for road in roads if road.pipeline is not None] or roads)
        if best.pipeline is None:
            return best
        return self._sooner_alone(survey, main, match, best) or self._queued(survey, best)

    def _sooner_alone(self, survey: Survey, main: Worker, match: Match, road: Candidate) -> Candidate | None:
        """Main decode alone, where the way over a busy prefill takes more than twice as long. Twice, because
        its steps are longer meanwhile for all that decode there. What is being prefilled already goes on.
        """
        prefill = None if road.prefill is None else self._fleet.get(road.prefill)
        lacking = survey.lacking(match)
        most = self._policy.md_local_busy * self._policy.md_local_tokens
        if prefill is None or not survey.wish.local_allowed or survey.wish.prefill or lacking > most:
            return None
        seconds, rtt = survey.local(main, match), self._fleet.rtt(main.node)
        if road.pipeline is Pipeline.P_MD or road.t_relay is None:
            other = max(road.t_prefill, survey.line_wait(prefill, main, match)) + rtt
        else:
            other = road.t_relay
        if rtt + 2 * seconds + self._policy.relay_margin >= other:
            return None
        why = f"main decode alone in {rtt + seconds:.3f} s, {other:.3f} by way of {road.prefill}"
        return self._alone(survey, main, match, Choice(Pipeline.MD, why, alone=lacking))

    def _queued(self, survey: Survey, road: Candidate) -> Candidate:
        """The road, unless its prefill has enough to do: waiting for that one is then better than having
        another compute what this one holds, or it would not have been the best.
        """
        prefill = None if road.prefill is None else self._fleet.get(road.prefill)
        wait = 0.0 if prefill is None or survey.wish.patient else survey.prefill_wait(prefill)
        if wait <= self._policy.max_prefill_wait:
            return road
        why = f"{road.prefill} has {wait:.2g} s of prefill queued"
        return Candidate(road.node, road.role, why, Obstacle.FULL, cost=road.cost)

    def _with_prefill(self, survey: Survey, main: Worker, match: Match, prefill: Worker) -> Candidate:
        wish = survey.wish
        t_prefill, t_line = survey.prefill_end(prefill), survey.line(prefill, main, match)
        t_main = max(t_prefill, t_line)
        relay = survey.relay(prefill) if wish.relay_allowed else None
        choice = choose_pipeline(
            self._policy,
            Roads(
                lacking_tokens=survey.lacking(match),
                prefill_possible=True,
                line_up=True,
                local_allowed=wish.local_allowed,
                relay_allowed=wish.relay_allowed,
                t_main=t_main,
                t_relay=None if relay is None else relay[1],
                line_wait=0.0 if wish.patient else survey.line_wait(prefill, main, match),
                relay_output=0.0 if relay is None else wish.output * relay[0].step_seconds(),
                singular_allowed=wish.singular_allowed
                and wish.output <= self._policy.singular_max_output
                and relay is not None
                and self._singular(relay[0], wish),
            ),
            wish.deadline,
        )
        if choice.pipeline is Pipeline.MD:
            return self._alone(survey, main, match, choice)
        return Candidate(
            node=main.node,
            role=str(Role.MAIN),
            reason=choice.reason,
            obstacle=None if choice.pipeline is not None else Obstacle.LINE,
            pipeline=choice.pipeline,
            prefill=prefill.node,
            relay=None if relay is None else relay[0].node,
            have=match.have,
            expected=match.expected,
            t_main=t_main,
            t_relay=None if relay is None else relay[1],
            t_prefill=t_prefill,
            load=main.load(),
            cost=t_prefill
            + t_main
            + survey.decode_cost(main)
            + survey.prefill_burden(prefill)
            + LINE_USE * survey.line_use(prefill, main, match),
            ample=self._ample(survey, main, match),
            wait=choice.wait,
        )

    def _without_prefill(self, survey: Survey, main: Worker, match: Match) -> Candidate:
        """Main decode alone, or nothing: no prefill worker can be used and send to it now."""
        prefills = self._fleet.of(Role.PREFILL, survey.pool)
        linked = [one for one in prefills if self._fleet.connected(one.node, main.node)]
        roads = Roads(
            lacking_tokens=survey.lacking(match), prefill_possible=False, line_up=bool(linked) or not prefills
        )
        choice = choose_pipeline(self._policy, roads, survey.wish.deadline)
        if choice.pipeline is Pipeline.MD:
            return self._alone(survey, main, match, choice)
        why = [
            f"{one.node} {one.why_not(survey.now) or 'refused or failed this request'}"
            if one in linked
            else f"no KV session between {one.node} and {main.node}"
            for one in prefills
        ]
        return Candidate(
            node=main.node,
            role=str(Role.MAIN),
            reason="; ".join([choice.reason, *why]),
            obstacle=Obstacle.SILENT if prefills else Obstacle.NONE,
            have=match.have,
            expected=match.expected,
            load=main.load(),
        )

    def _alone(self, survey: Survey, main: Worker, match: Match, choice: Choice) -> Candidate:
        seconds = survey.local(main, match)
        return Candidate(
            node=main.node,
            role=str(Role.MAIN),
            reason=choice.reason,
            pipeline=Pipeline.MD,
            have=match.have,
            expected=match.expected,
            t_main=seconds,
            t_prefill=seconds,
            load=main.load(),
            cost=2 * seconds + survey.decode_cost(main),
            ample=self._ample(survey, main, match),
            alone=choice.alone,
        )

    def _obstacle(self, survey: Survey, main: Worker) -> Candidate | None:
        """Why a main decode cannot take the request; None where it may."""
        why = main.why_not(survey.now)
        kind: Obstacle | None = WHY_NOT.get(why or "", Obstacle.SILENT)
        announce, wish = main.announce, survey.wish
        if why is None and announce is not None:
            whole = len(wish.hashes) + survey.growth_blocks()
            need = whole - survey.match(main.node).have
            free = main.free_blocks()
            taken, seats = main.taken(), math.ceil(SEATS * announce.max_running)
            rows = (
                (
                    wish.tokens >= announce.max_context,
                    Obstacle.TOO_LONG,
                    f"context is {announce.max_context}",
                ),
                (
                    whole > announce.pool_blocks,
                    Obstacle.TOO_LONG,
                    f"needs {whole} blocks, its pool has {announce.pool_blocks}",
                ),
                (main.node in wish.avoid, wish.avoid.get(main.node), "refused or failed this request"),
                (survey.now < main.full_until, Obstacle.FULL, "full"),
                (need > free, Obstacle.FULL, f"needs {need} blocks, {free} are free"),
                (taken >= seats, Obstacle.FULL, f"{taken} requests run or are on their way, {seats} may"),
            )
            why, kind = next(((text, row) for holds, row, text in rows if holds and row), (None, kind))
        return None if why is None else Candidate(main.node, str(Role.MAIN), why, kind)

    def _ample(self, survey: Survey, main: Worker, match: Match) -> bool:
        """Whether the last report leaves no doubt that it will admit: then Prefill need not wait for its
        answer.
        """
        if main.report is None or main.announce is None:
            return False
        missing = len(survey.wish.hashes) - match.have
        promised = main.report.promised_blocks
        half = self._worker.unlanded_fraction * main.announce.pool_blocks
        # What matches may be cached, and counts as free until it is pinned.
        room = 4 * main.free_blocks() >= 5 * (len(survey.wish.hashes) + survey.growth_blocks())
        return room and (promised == 0 or promised + missing <= half)

    def _singular(self, relay: Worker, wish: Wish) -> bool:
        """Whether a relay has room for one more singular request."""
        if relay.node == wish.relay:
            return True
        held = relay.singular_blocks()
        pool = 0 if relay.announce is None else relay.announce.pool_blocks
        return not held or held + len(wish.hashes) <= self._policy.singular_pool_fraction * pool


def _no_road(rejected: list[Candidate], nobody: str, demand: Demand) -> NoRoad:
    """The answer where every candidate was rejected: the mildest obstacle tells what there is to hope for."""
    order = list(Obstacle)
    kinds = [one.obstacle for one in rejected if one.obstacle is not None]
    if not kinds:
        return NoRoad(Obstacle.NONE, tuple(rejected), details=nobody)
    waits = [one.wait for one in rejected if one.obstacle is Obstacle.LINE]
    kind = min(kinds, key=order.index)
    return NoRoad(kind, tuple(rejected), min(waits, default=0.0), nobody, demand)


def _best(roads: list[Candidate]) -> Candidate:
    """The cheapest; among equals the one with most overlap, then the least loaded."""
    cheapest = min(road.cost for road in roads)
    slack = max(0.01, TIE * cheapest)
    equal = [road for road in roads if road.cost <= cheapest + slack]
    return min(equal, key=lambda road: (-(road.have + road.expected), road.load, road.cost, road.node))
