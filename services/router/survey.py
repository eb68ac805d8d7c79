"""The numbers that one placement looks at, each computed once: matches, queues, lines, relays. Reads fleet
and index.
"""

from __future__ import annotations

from bisect import bisect_right

from services.router.fleet import Fleet
from services.router.index import Index, Match
from services.router.lines import Line
from services.router.wish import Demand, Wish
from services.router.worker import PoolKey, Worker
from shared.policy.config import RouterPolicy
from shared.policy.pipeline import line_seconds, prefill_seconds
from shared.wire.messages import Role

WASTE = 2.0
"""Seconds that others wait for each second that busy prefill workers compute what one of them holds."""

SHORT_LANE = 0.5
"""Part of a line's rate that serves its shortest transfers first: a small one does not wait for all that is
queued."""

SLOWDOWN = 0.25
"""Part by which steps of a full main decode are longer than those of an idle one: decoding is bound by memory
that is read once for all."""

MOST_OUTPUT = 1024
"""Ids of an answer that count in what it costs, at most: while nothing is known of a client's answers they
are taken to be as long as it allows, which says nothing."""


class Survey:
    """One look at the fleet for one request."""

    def __init__(
        self, now: float, pool: PoolKey, wish: Wish, fleet: Fleet, index: Index, policy: RouterPolicy
    ) -> None:
        self.now = now
        self.pool = pool
        self.wish = wish
        self._fleet = fleet
        self._index = index
        self._policy = policy
        self._rate = fleet.typical_rate(Role.PREFILL, pool)
        self._matches: dict[str, Match] = {}
        self._ends: dict[str, float] = {}
        self._relays: dict[str, tuple[Worker, float] | None] = {}
        self._outstanding: dict[str, int] = {}
        self._sizes: dict[str, list[int]] = {}  # by line, of this router's transfers
        self._usable: list[Worker] | None = None
        self._least: tuple[float, float] | None = None  # seconds of the smallest prefill; part of them busy
        self._costs: dict[str, float] = {}

    # --- workers --------------------------------------------------------------------------------------------

    def match(self, node: str) -> Match:
        """Leading blocks that a worker holds."""
        found = self._matches.get(node)
        if found is None:
            found = self._matches[node] = self._index.match(node, self.wish.hashes)
        return found

    def senders(self, target: Worker | None) -> list[Worker]:
        """Prefill workers that may be given the request now and can send to `target`."""
        if self._usable is None:
            self._usable = [
                one
                for one in self._fleet.of(Role.PREFILL, self.pool)
                if one.node not in self.wish.avoid
                and one.why_not(self.now) is None
                and self.now >= one.full_until
            ]
        if target is None:
            return self._usable
        return [one for one in self._usable if self._fleet.connected(one.node, target.node)]

    def growth_blocks(self) -> int:
        """Blocks for what a decoder is fed and for the output that its admission reserves room for."""
        block = self.pool.block_tokens
        rest = self.wish.tokens - len(self.wish.hashes) * block
        return -(-(self.wish.growth + rest) // block)

    def lacking(self, match: Match) -> int:
        """Tokens that a decoder with this match has no KV of; blocks on their way count as lacking."""
        return self.wish.tokens - match.have * self.pool.block_tokens

    # --- seconds --------------------------------------------------------------------------------------------

    def prefill_end(self, prefill: Worker) -> float:
        """Until a prefill there has drawn its id."""
        known = self._ends.get(prefill.node)
        if known is not None:
            return known
        if prefill.node == self.wish.prefill:
            return self.wish.prefill_end  # the worker's numbers have this request among those before it
        queued = max(prefill.queued_tokens(), self.ramp(prefill, tokens=True))
        rate = prefill.prefill_rate(self._rate)
        end = self._ends[prefill.node] = prefill_seconds(queued, self._uncached(prefill), rate)
        return end

    def prefill_burden(self, prefill: Worker) -> float:
        """What the request's prefill there costs others: the time for which it keeps those waiting that wait
        there, and where all are busy what it computes though another holds it. 0 where it is there already.
        """
        if prefill.node == self.wish.prefill:
            return 0.0
        work = self._work(prefill)
        if self._least is None:
            workers = self.senders(None) or [prefill]
            busy = min(1.0, sum(one.load() for one in workers) / len(workers))
            self._least = (min(self._work(one) for one in workers), busy)
        least, busy = self._least
        return work * prefill.load() + WASTE * busy * max(0.0, work - least)

    def _work(self, prefill: Worker) -> float:
        return prefill_seconds(0, self._uncached(prefill), prefill.prefill_rate(self._rate))

    def _uncached(self, prefill: Worker) -> int:
        block = self.pool.block_tokens
        cached = min(sum(self.match(prefill.node)), (self.wish.tokens - 1) // block)
        return self.wish.tokens - cached * block

    def prefill_wait(self, prefill: Worker) -> float:
        """Until a prefill there begins; 0 where the request is in that queue already, or no speed is known
        yet.
        """
        if prefill.node == self.wish.prefill or not self._fleet.measured(Role.PREFILL, self.pool):
            return 0.0
        return prefill.queued_tokens() / prefill.prefill_rate(self._rate)

    def demand(self) -> Demand:
        """What the request asks of all prefill workers and of the line, and what is queued at those."""
        prefills = self.senders(None)
        if not prefills or not self._fleet.measured(Role.PREFILL, self.pool):
            return Demand()
        rate = sum(one.prefill_rate(self._rate) for one in prefills)
        tokens = max(1, min(self._uncached(one) for one in prefills))
        line = min(
            (
                self.line_use(prefills[0], main, self.match(main.node))
                for main in self._fleet.of(Role.MAIN, self.pool)
            ),
            default=0.0,
        )
        return Demand(max(tokens / rate, line), sum(one.queued_tokens() for one in prefills) / rate)

    def local(self, main: Worker, match: Match) -> float:
        """Until main decode alone has drawn the next id."""
        rate = main.prefill_rate(self._rate)
        return prefill_seconds(main.queued_tokens(), self.lacking(match), rate)

    def line(self, sender: Worker, main: Worker, match: Match) -> float:
        """Until what main decode lacks has crossed the line; blocks on their way cost only their remaining
        time.
        """
        line = self._fleet.line(sender, main)
        rate = self._fleet.lines.kv_rate(line)
        waiting = self.outstanding(line)
        seconds = line_seconds(waiting, self._missing(main, match), rate, line.rtt)
        if match.expected and rate:
            seconds = max(seconds, waiting / rate + line.rtt)
        return seconds

    def line_wait(self, sender: Worker, main: Worker, match: Match) -> float:
        """How far the line is behind for this request: less than `line` where it is small, for half of the
        line serves the shortest first. That is what it may count on, not what it is sure of.
        """
        line, missing = self._fleet.line(sender, main), self._missing(main, match)
        rate, whole = self._fleet.lines.kv_rate(line), self.line(sender, main, match)
        if not rate or not missing:
            return whole
        return min(whole, line_seconds(self._shorter(line, missing), missing, SHORT_LANE * rate, line.rtt))

    def _shorter(self, line: Line, size: int) -> int:
        """Bytes of transfers on a line that go before one of `size` bytes in the lane of the shortest; those
        that other routers asked for may all be.
        """
        sizes = self._sizes.get(line.name)
        if sizes is None:
            sizes = self._sizes[line.name] = sorted(
                placed.bytes
                for worker in self._fleet.all()
                for placed in worker.placed.values()
                if placed.bytes and placed.line == line.name
            )
        unknown = max(0, self.outstanding(line) - sum(sizes))
        return unknown + sum(sizes[: bisect_right(sizes, size)])

    def line_use(self, sender: Worker, main: Worker, match: Match) -> float:
        """For how long the line is busy with what main decode lacks."""
        rate = self._fleet.lines.kv_rate(self._fleet.line(sender, main))
        return self._missing(main, match) / rate if rate else 0.0

    def _missing(self, main: Worker, match: Match) -> int:
        """Bytes that main decode lacks and nothing brings yet."""
        return max(0, len(self.wish.hashes) - match.have - match.expected) * block_bytes(main)

    def arrival(self, sender: Worker, main: Worker, match: Match) -> float:
        """Until the id is drawn, plus until main decode can go on from it: what a client feels of a road."""
        end = self.prefill_end(sender)
        return end + max(end, self.line(sender, main, match))

    def relay(self, prefill: Worker) -> tuple[Worker, float] | None:
        """The relay that can begin first beside a prefill worker, and when; None where none has room."""
        if prefill.node not in self._relays:
            self._relays[prefill.node] = self._best_relay(prefill, self.prefill_end(prefill))
        return self._relays[prefill.node]

    def _best_relay(self, prefill: Worker, t_prefill: float) -> tuple[Worker, float] | None:
        best: tuple[float, int, Worker] | None = None
        for relay in self._fleet.of(Role.RELAY, self.pool):
            if relay.node in self.wish.avoid or relay.why_not(self.now) or self.now < relay.full_until:
                continue
            if not self._fleet.connected(prefill.node, relay.node):
                continue
            missing = len(self.wish.hashes) - self.match(relay.node).have
            load = relay.owner_load()
            full = load.free_blocks < missing + self.growth_blocks() or load.running >= load.max_running
            if full and relay.node != self.wish.relay:
                continue
            line = self._fleet.line(prefill, relay)
            rate = self._fleet.lines.kv_rate(line)
            lan = line_seconds(self.outstanding(line), missing * block_bytes(relay), rate, line.rtt)
            found = (max(t_prefill, lan), load.running, relay)
            if best is None or found[:2] < best[:2]:
                best = found
        return None if best is None else (best[2], best[0])

    # --- load -----------------------------------------------------------------------------------------------

    def outstanding(self, line: Line) -> int:
        """Bytes that wait for a line."""
        if line.name not in self._outstanding:
            self._outstanding[line.name] = self._fleet.outstanding(line)
        return self._outstanding[line.name]

    def decode_cost(self, main: Worker) -> float:
        """Seconds that the load at a main decode adds to the answer."""
        known = self._costs.get(main.node)
        if known is not None:
            return known
        slots = max(1, 1 if main.announce is None else main.announce.max_running)
        load = max(main.load(), self.ramp(main))
        queue = max(0.0, load + 1 - slots) / slots
        answer = min(self.wish.output, MOST_OUTPUT) * main.step_seconds()
        cost = self._costs[main.node] = answer * (SLOWDOWN * load / slots + queue)
        return cost

    def ramp(self, worker: Worker, *, tokens: bool = False) -> float:
        """Load that a worker which has just joined is taken to have: its peers' mean, less and less of it."""
        ramp = self._policy.join_ramp
        age = self.now - worker.joined_at
        if age >= ramp:
            return 0.0
        elders = [one for one in self._fleet.of(worker.role, self.pool) if self.now - one.joined_at >= ramp]
        if not elders:
            return 0.0
        mean = sum(one.queued_tokens() if tokens else one.load() for one in elders) / len(elders)
        return mean * (1 - age / ramp)


def block_bytes(worker: Worker) -> int:
    """Bytes of one KV block there."""
    return 0 if worker.announce is None else worker.announce.bytes_per_block
