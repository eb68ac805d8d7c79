"""A mesh in memory and in virtual time: pure cores joined by a network that delays, cuts and loses.

A discrete-event loop. Each pair of nodes has a session with ordered control messages and, per direction,
bulk lanes that pull chunks at a line's rate. Engine steps take virtual time. Nothing here knows what the
messages mean (but a line's shares), so any `ControlCore` or `BulkCore` can be a node. `after(node)` runs
after every event for each node it concerned and that is `watched`: the place for invariants.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, cast

from benchmarks.simulation.lanes import Lanes
from benchmarks.simulation.nodes import EngineCore, Lane, Line, Link, Node
from shared.engine.api import StepPlan, StepResult
from shared.wire.messages import KvChunk, LineShare, Message, Role
from shared.wire.port import Dial, Send, WakeBulk


def _nothing(*_: object) -> None:
    """Nobody looks."""


def _as_it_is(_node: Node, _plan: StepPlan, result: StepResult) -> StepResult:
    return result


def _said(_source: Node, _target: Node, message: Message) -> Message:
    return message


def _open_line(_one: Node, _other: Node) -> Line:
    return Line()


class Sim:
    """The event loop, the nodes and the network."""

    def __init__(
        self,
        seed: int = 0,
        *,
        chunk: int = 4096,
        lanes: int = 1,
        suspect_after: float = 2.0,
        lease: float = 30.0,
        after: Callable[[Node], None] = _nothing,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.links: dict[frozenset[str], Link] = {}
        self._routes: dict[tuple[str, str], Link] = {}  # the same by (from, to)
        self.dropped: Counter[str] = Counter()  # messages to nodes without a session, by type
        self.damage: Callable[[KvChunk, bytearray], None] = _nothing
        self.tamper: Callable[[Node, StepPlan, StepResult], StepResult] = _as_it_is
        self.spy: Callable[[str, str, Message, bytes], None] = _nothing
        self.translate: Callable[[Node, Node, Message], Message] = _said
        self.line_between: Callable[[Node, Node], Line] = _open_line
        self.after = after
        self.events = 0
        self._touched: dict[str, Node] = {}
        self._bulk = Lanes(self, chunk)
        self._lanes = lanes
        self._suspect_after = suspect_after
        self._lease = lease
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    # --- the loop -------------------------------------------------------------------------------------------

    def at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        """Do something at a time; things of one time happen in the order they were asked for."""
        now = self.now
        heapq.heappush(self._heap, (max(now, when), next(self._order), act, args))

    def run(
        self, until: float | None = None, *, stop: Callable[[], bool] | None = None, most: int = 1_000_000
    ) -> bool:
        """Process events up to a time, or until `stop()`. Whether it ended by `stop`.

        Raises RuntimeError after `most` events: something goes round in circles.
        """
        heap = self._heap
        for _ in range(most):
            if stop is not None and stop():
                return True
            if not heap or (until is not None and heap[0][0] > until):
                self.now = self.now if until is None else until
                return False
            self.now, _, act, args = heapq.heappop(heap)
            act(*args)
            self.events += 1
            if self._touched:
                self._look()
        raise RuntimeError(f"{most} events and no end")

    def call(self, node: Node, act: Callable[[], Any]) -> Any:
        """Call into a node's core from outside, then do what it wants done."""
        result = act()
        self.perform(node)
        return result

    def _look(self) -> None:
        touched, self._touched = self._touched, {}
        for node in touched.values():
            if node.alive:
                self.after(node)

    def perform(self, node: Node) -> None:
        """Empty a core's outbox, start its engine, arm its timer."""
        if not node.alive:
            return
        if node.watched:
            self._touched[node.name] = node
        for instruction in node.core.take_outbox():
            if isinstance(instruction, Send):
                self._send(node, instruction.node, instruction.message, instruction.payload)
            elif isinstance(instruction, WakeBulk):
                self._wake(node, instruction.node)
            elif isinstance(instruction, Dial):
                self._dial(node, instruction.node)
        if node.stepping is None and node.engine is not None:
            self._step(node)
        deadline = node.core.next_deadline()
        if deadline is not None and (node.armed is None or deadline < node.armed):
            node.armed = deadline
            self.at(deadline, self._timer, node, deadline)

    def _timer(self, node: Node, deadline: float) -> None:
        if not node.alive or node.armed != deadline:
            return
        node.armed = None
        due = node.core.next_deadline()
        if due is not None and due <= self.now:
            node.core.on_timer(self.now)
        self.perform(node)

    # --- engines --------------------------------------------------------------------------------------------

    def _step(self, node: Node) -> None:
        if node.engine is None or node.runner is None or node.stepping is not None:
            return
        plan = node.engine.plan(self.now)
        if plan is None:
            return
        node.stepping = plan
        early = node.runner.execute(plan) if self.random.random() < 0.5 else None

        def done() -> None:
            if not node.alive or node.engine is None or node.runner is None:
                return
            result = early if early is not None else node.runner.execute(plan)
            result = self.tamper(node, plan, result)
            node.stepping = None
            events = node.engine.apply(self.now, plan, result)
            cast(EngineCore, node.core).on_engine(self.now, events)
            self.perform(node)

        self.at(self.now + node.timing.seconds(plan), done)

    # --- nodes and sessions ---------------------------------------------------------------------------------

    def add(self, node: Node) -> Node:
        """A process starts. A name may be used again once the former process is dead."""
        known = self.nodes.get(node.name)
        if known is not None and known.alive:
            raise ValueError(f"node {node.name} runs")
        self.nodes[node.name] = node
        self.perform(node)
        return node

    def connect(self, a: str, b: str) -> Link:
        """A session between two nodes opens now."""
        former = self.links.get(frozenset((a, b)))
        if former is not None:
            self._tell_late(former)
        first, second = self.nodes[a], self.nodes[b]
        lanes = [
            Lane(*ends)
            for ends in ((first, second), (second, first))
            for _ in range(self._lanes)
            if ends[0].bulk is not None and ends[1].bulk is not None
        ]
        link = Link((first, second), self.line_between(first, second), lanes)
        link.waiting = {a: deque(), b: deque()}
        self.links[frozenset((a, b))] = self._routes[a, b] = self._routes[b, a] = link
        for node in link.ends:
            node.core.on_session(self.now, link.other(node).met_by(node))
        for node in link.ends:
            self.perform(node)
            for lane in lanes:
                self._bulk.pump(link, lane)
        return link

    def connect_all(self) -> None:
        """Sessions between all nodes that have none; routers have none with one another."""
        for a, b in itertools.combinations(sorted(self.nodes), 2):
            one, two = self.nodes[a], self.nodes[b]
            routers = one.role is Role.ROUTER and two.role is Role.ROUTER
            if one.alive and two.alive and self.link(a, b) is None and not routers:
                self.connect(a, b)

    def link(self, a: str, b: str) -> Link | None:
        """The live session of two nodes."""
        link = self._routes.get((a, b))
        return None if link is None or link.over else link

    def _dial(self, node: Node, target: str) -> None:
        other = self.nodes.get(target)
        if other is not None and other.alive and self.link(node.name, target) is None:
            self.at(self.now + 0.01, lambda: self._dialled(node, other))

    def _dialled(self, node: Node, other: Node) -> None:
        if node.alive and other.alive and self.link(node.name, other.name) is None:
            self.connect(node.name, other.name)

    # --- faults ---------------------------------------------------------------------------------------------

    def cut(self, a: str, b: str) -> None:
        """The line between two nodes breaks: chunks on it are lost, control waits for `heal` or the lease."""
        link = self.link(a, b)
        if link is None or not link.up:
            return
        self._break(link)
        link.down_since, era = self.now, link.era
        self.at(self.now + self._suspect_after, lambda: self._suspect(link, era))
        self.at(self.now + self._lease, lambda: self._lease_over(link, era))

    def heal(self, a: str, b: str) -> None:
        """The line is back: what waited is delivered, both ends learn of the break."""
        link = self.link(a, b)
        if link is None or link.up:
            return
        link.up = True
        suspected = self.now - link.down_since >= self._suspect_after
        link.era += 1
        for node in link.ends:
            for _ in range(len(link.waiting[node.name])):
                self._fly(link, node)
        for node in link.ends:
            other = link.other(node).name
            if suspected:
                self.call(node, lambda n=node, o=other: n.core.on_suspect(self.now, o, False))  # type: ignore[misc]
            self.call(node, lambda n=node, o=other: n.core.on_resumed(self.now, o))  # type: ignore[misc]
        for lane in link.lanes:
            self._bulk.pump(link, lane)

    def lose(self, a: str, b: str, reason: str = "lease", *, apart: float = 0.0) -> None:
        """The session of two nodes ends for good; the second one learns of it `apart` seconds later, or when
        the next session begins.
        """
        link = self.link(a, b)
        if link is None:
            return
        if link.up:
            self._break(link)
        link.over = True
        link.era += 1
        first, second = (self.nodes[a], self.nodes[b])
        self._tell_lost(link, first, reason)
        link.untold = (second, reason)
        if not apart:
            self._tell_late(link)
        else:
            self.at(self.now + apart, lambda: self._tell_late(link))

    def _tell_late(self, link: Link) -> None:
        if link.untold is not None:
            (node, reason), link.untold = link.untold, None
            self._tell_lost(link, node, reason)

    def _tell_lost(self, link: Link, node: Node, reason: str) -> None:
        if node.alive:
            self.call(node, lambda: node.core.on_lost(self.now, link.other(node).name, reason))

    def kill(self, name: str) -> Node:
        """A process dies at once: its peers lose their sessions with it, its state is gone."""
        node = self.nodes[name]
        node.alive = False
        for link in list(self.links.values()):
            if node in link.ends and not link.over:
                self.lose(link.ends[0].name, link.ends[1].name, "incarnation")
        return node

    def _suspect(self, link: Link, era: int) -> None:
        if link.over or link.up or link.era != era:
            return
        for node in link.ends:
            self.call(node, lambda n=node: n.core.on_suspect(self.now, link.other(n).name, True))  # type: ignore[misc]

    def _lease_over(self, link: Link, era: int) -> None:
        if not link.over and not link.up and link.era == era:
            self.lose(link.ends[0].name, link.ends[1].name, "lease")

    # --- control --------------------------------------------------------------------------------------------

    def _send(self, node: Node, target: str, message: Message, payload: bytes) -> None:
        link = self.link(node.name, target)
        if link is None:
            self.dropped[type(message).__name__] += 1
            return
        self.spy(node.name, target, message, payload)
        other = link.other(node)
        link.waiting[other.name].append((self.translate(node, other, message), payload))
        if link.up:
            self._fly(link, other)

    def _fly(self, link: Link, target: Node) -> None:
        delay = link.line.delay + self.random.random() * link.line.jitter
        when = max(link.arrives.get(target.name, 0.0), self.now + delay)
        link.arrives[target.name] = when
        self.at(when, self._deliver, link, target, link.era)

    def _deliver(self, link: Link, target: Node, era: int) -> None:
        if link.era != era or not target.alive:
            return
        message, payload = link.waiting[target.name].popleft()
        if isinstance(message, LineShare):
            self._granted(target, link.other(target).name, message)
        target.core.on_message(self.now, link.other(target).name, message, payload)
        self.perform(target)

    def _granted(self, node: Node, router: str, share: LineShare) -> None:
        """A sender has heard what part of a line is its own."""
        lines = {id(link.line): link.line for link in self.links.values() if node in link.ends}
        for line in lines.values():
            if line.name == share.line:
                self._bulk.granted(line, router, node.name, share)

    def _wake(self, node: Node, target: str) -> None:
        link = self.link(node.name, target)
        if link is not None:
            self._bulk.wake(link, node)

    def _break(self, link: Link) -> None:
        link.up = False
        link.era += 1
        self._bulk.broken(link)
