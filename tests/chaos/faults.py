"""What is broken on purpose, how, and for how long: a seeded script of faults, in bursts.

Each fault is undone before its coroutine returns: a killed node runs again, a cut link carries again.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from benchmarks.wan.proxy import WanProxy
from tests.chaos.judging import Span, Trouble
from tests.chaos.scene import ROUTER
from tests.chaos.stage import Stage
from tests.chaos.tripwire import Wire

Fault = Callable[[], Awaitable[bool]]
"""Breaks something and mends it; False: it is broken already."""
_DELAY = 2.0
_ARMED = 6.0  # seconds in which an armed moment may come
_MOMENTS: tuple[Literal["first", "middle", "last"], ...] = ("first", "middle", "last")
_NEVER = float("inf")


class Faults:
    """Breaks a stage."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        trouble: Trouble,
        *,
        long: bool,
        kinds: Sequence[str] = (),
    ) -> None:
        """`long`: with pauses that are longer than the leases. `kinds`: only these."""
        self._stage = stage
        self._draw = random.Random(seed)
        self._trouble = trouble
        self._busy: set[str] = set()
        self._cut: set[WanProxy] = set()
        self.done: Counter[str] = Counter()
        self.healed_at = 0.0
        self.notes: list[str] = []
        self._kinds: Sequence[tuple[str, int, Fault]] = (
            ("kill", 5, self._kill),
            ("kill_at_once_back", 2, self._kill_and_start),
            *((f"kill_main_at_{moment}", 1, partial(self._kill_drawing, moment)) for moment in _MOMENTS),
            *(
                (f"kill_prefill_at_{part}_{cover}", 1, partial(self._kill_sending, part / 100, cover))
                for part in (10, 50, 90)
                for cover in ("relayed", "alone")
            ),
            ("damage", 2, self._damage),
            ("pause", 5, self._pause),
            ("pause_long", int(long), lambda: self._pause_node(self._some_worker(), (12.0, 33.0))),
            ("term", 3, self._term),
            ("line_cut_silent", 2, lambda: self._cut_links(self._stage.line, silent=True)),
            ("line_cut_loud", 2, lambda: self._cut_links(self._stage.line, silent=False)),
            ("link_cut_silent", 3, lambda: self._cut_links([self._some_link()], silent=True)),
            ("link_cut_loud", 3, lambda: self._cut_links([self._some_link()], silent=False)),
            ("link_delayed", 3, self._delay),
            ("router_kill", 1, lambda: self._kill_node(ROUTER, self._draw.uniform(0.0, 1.0))),
            ("router_term", 1, lambda: self._term(ROUTER)),
            ("router_pause", 1, lambda: self._pause_node(ROUTER)),
        )
        if kinds:
            self._kinds = [one for one in self._kinds if one[0] in kinds]
        self._left: list[str] = []

    async def burst(self, count: int, gap: float) -> None:
        """So many faults, each beginning up to `gap` seconds after the one before; returns when all are
        undone."""
        running = []
        for _ in range(count):
            running.append(asyncio.create_task(self._one(self._next())))
            await asyncio.sleep(self._draw.uniform(0.1, gap))
        await asyncio.gather(*running)

    def _next(self) -> str:
        """Kinds come by weight, shuffled like cards: a run of some length has them all."""
        if not self._left:
            self._left = [kind for kind, weight, _ in self._kinds for _ in range(weight)]
            self._draw.shuffle(self._left)
        return self._left.pop()

    async def _one(self, kind: str) -> None:
        fault = next(one for name, _, one in self._kinds if name == kind)
        if not await fault():
            return
        self.done[kind] += 1
        self.healed_at = max(self.healed_at, asyncio.get_running_loop().time())

    # --- nodes ----------------------------------------------------------------------------------------------

    async def _kill(self) -> bool:
        return await self._kill_node(self._some_worker(), self._draw.uniform(0.3, 3.0))

    async def _kill_and_start(self) -> bool:
        return await self._kill_node(self._some_worker(), 0.0)

    async def _kill_drawing(self, moment: Literal["first", "middle", "last"]) -> bool:
        """A main decode dies as it draws an answer's first id, the one in its middle, or the last but one."""
        return await self._kill_armed(self._some_worker("main"), Wire("drawn", moment=moment))

    async def _kill_sending(self, part: float, cover: str) -> bool:
        """A prefill dies with a part of a transfer sent, with a relay that answers meanwhile or without."""
        wire = Wire("sent", part=part, covered=cover == "relayed")
        return await self._kill_armed(self._some_worker("prefill"), wire)

    async def _kill_armed(self, name: str, wire: Wire) -> bool:
        """A worker dies by itself at the moment that was armed; False: it has not come."""
        if name in self._busy:
            return False
        self._busy.add(name)
        try:
            self._stage.arm(name, wire)
            died = await self._stage.died(name, _ARMED)
            self.say(f"{name} {'died' if died else 'has not come'} by {wire}")
            if died:
                with self._broken(self._away(name)):
                    await asyncio.sleep(self._draw.uniform(0.0, 2.0))
                    await self._start(name)
        finally:
            self._busy.discard(name)
        return died

    async def _damage(self) -> bool:
        """A prefill sends damaged chunks for some seconds."""
        name = self._some_worker("prefill")
        async with self._holding(name, away=False) as free:
            if free:
                self.say(f"{name} damages what it sends")
                self._stage.arm(name, Wire("damage", part=self._draw.choice((0.02, 0.3))))
                await asyncio.sleep(self._draw.uniform(1.0, 3.0))
                self._stage.disarm(name)
            return free

    async def _kill_node(self, name: str, away: float) -> bool:
        async with self._holding(name) as free:
            if free:
                self.say(f"kill {name} for {away:.1f} s")
                await self._stage.end(name, signal.SIGKILL)
                await asyncio.sleep(away)
                await self._start(name)
            return free

    async def _term(self, name: str = "") -> bool:
        name = name or self._some_worker()
        async with self._holding(name, drains=True) as free:
            if not free:
                return False
            self.say(f"term {name}")
            code = await self._stage.end(name, signal.SIGTERM)
            self.say(f"{name} has drained")
            if code:
                self._stage.crashes.append(f"{name} ended with {code} after SIGTERM")
            await self._start(name)
        return True

    async def _start(self, name: str) -> None:
        """Start a node again, and wait until it answers."""
        await self._stage.start(name)
        for _ in range(600):
            self._stage.look_for_crashes()
            try:
                await self._stage.held(name)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                self.say(f"{name} is back")
                return

    async def _pause(self) -> bool:
        return await self._pause_node(self._some_worker())

    async def _pause_node(self, name: str, lengths: Sequence[float] = (0.3, 1.5, 3.0, 5.0)) -> bool:
        async with self._holding(name, dies=False) as free:
            if not free:
                return False
            node, seconds = self._stage.nodes[name], self._draw.choice(lengths)
            self.say(f"pause {name} for {seconds} s")
            node.process.send_signal(signal.SIGSTOP)
            node.stopped = True
            await asyncio.sleep(seconds)
            node.process.send_signal(signal.SIGCONT)
            node.stopped = False
        return True

    def _some_worker(self, kind: str = "") -> str:
        """A worker to which nothing is done just now, mostly one whose fellow is well."""
        scene = self._stage.scene
        names = [name for name in scene.nodes if name not in scene.routers and name.startswith(kind)]
        free = [name for name in names if name not in self._busy] or names
        alone = {name.partition("-")[0] for name in self._busy}
        kept = [name for name in free if name.partition("-")[0] not in alone]
        return self._draw.choice(kept if kept and self._draw.random() < 0.7 else free)

    @asynccontextmanager
    async def _holding(
        self, name: str, *, dies: bool = True, drains: bool = False, away: bool = True
    ) -> AsyncIterator[bool]:
        """The node for one fault alone; False where another has it already."""
        if name in self._busy:
            yield False
            return
        self._busy.add(name)
        try:
            noted = [self._away(name)] if away else []
            if name == ROUTER and dies and away:
                noted.append(self._trouble.draining if drains else self._trouble.router)
            with self._broken(*noted):
                yield True
        finally:
            self._busy.discard(name)

    # --- links ----------------------------------------------------------------------------------------------

    def _some_link(self) -> WanProxy:
        return self._draw.choice(list(self._stage.links.values()))

    async def _cut_links(self, links: Sequence[WanProxy], *, silent: bool) -> bool:
        mine = [link for link in links if link not in self._cut]
        seconds = self._draw.choice((0.5, 1.5, 3.0, 5.0))
        self.say(f"cut {len(mine)} links{' silently' if silent else ''} for {seconds} s: {self._names(mine)}")
        self._cut |= set(mine)
        with self._broken():
            for link in mine:
                link.cut(silent=silent)
            await asyncio.sleep(seconds)
            for link in mine:
                link.heal()
        self._cut -= set(mine)
        return bool(mine)

    async def _delay(self) -> bool:
        """One link's packets take 2 s more, for some seconds."""
        link = self._some_link()
        self.say(f"delay {self._names([link])}")
        with self._broken():
            for shaper in link.shapers:
                shaper.delay += _DELAY / 2
            await asyncio.sleep(self._draw.uniform(3.0, 6.0))
            for shaper in link.shapers:
                shaper.delay -= _DELAY / 2
        return True

    def _names(self, links: Sequence[WanProxy]) -> str:
        return ", ".join(f"{a}>{b}" for (a, b), link in self._stage.links.items() if link in links)

    def _away(self, name: str) -> list[Span]:
        return self._trouble.away.setdefault(name, [])

    @contextmanager
    def _broken(self, *noted: list[Span]) -> Iterator[None]:
        """A time of trouble; `noted`: where it is noted too, as it may end requests."""
        clock = asyncio.get_running_loop().time
        spans = [self._trouble.spans, *noted]
        open_span = (clock(), _NEVER)
        for one in spans:
            one.append(open_span)
        try:
            yield
        finally:
            for one in spans:
                one.remove(open_span)
                one.append((open_span[0], clock()))

    def say(self, what: str) -> None:
        now = asyncio.get_running_loop().time()
        self.notes.append(f"{datetime.now(UTC):%H:%M:%S.%f} {now:.2f} {what}")
