"""One run of chaos: a mesh, clients, bursts of faults with quiet windows, and what is left at the end."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.clients import Client
from tests.chaos.faults import Faults
from tests.chaos.judging import Tally, Trouble, verdict
from tests.chaos.stage import NODES, Held, Stage, leaked, open_stage

ENDED_WITHIN = 120.0
"""Seconds that the last requests may take."""
RESTED_WITHIN = 60.0
"""Seconds until nothing may be held any more; longer than any lease."""


_LONG = 60.0  # seconds from which on a run has pauses that are longer than the leases
_ANGRY = ("Traceback", '"level": "error"', '"level":"error"')


@dataclass(frozen=True)
class Plan:
    """How long, how many, how wild. Seconds; `burst` faults at most `gap` seconds apart."""

    seconds: float = 600.0
    seed: int = 1
    clients: int = 32
    burst: int = 6
    gap: float = 1.5
    quiet: float = 10.0
    rate_mbit: float = 20.0
    rtt_ms: float = 20.0
    pool_blocks: int = 1024
    patience: float = 30.0  # calm seconds without a token and without an error that are a hang


@dataclass(frozen=True)
class Outcome:
    """The line of a run, and notes that help to find out why."""

    line: dict[str, object]
    notes: Sequence[str]
    script: Sequence[str]


class Story:
    """Runs a plan on a stage."""

    def __init__(self, plan: Plan, stage: Stage, vocab: int) -> None:
        self._plan = plan
        self._stage = stage
        self._clock = asyncio.get_running_loop().time
        self._tally = Tally()
        self._trouble = Trouble()
        draw = random.Random(plan.seed)
        stems = [[draw.randrange(3, 250) for _ in range(700)] for _ in range(6)]
        self._clients = [
            Client(
                f"client-{at}",
                stage.url,
                vocab,
                draw.getrandbits(32),
                self._tally,
                self._trouble,
                stems,
                plan.patience,
            )
            for at in range(plan.clients)
        ]
        self._faults = Faults(
            stage, draw.getrandbits(32), self._trouble, self._moment, long=plan.seconds >= _LONG
        )
        self._recovery: list[float] = []

    async def run(self) -> Outcome:
        """The whole of it."""
        rest = await self._at_rest()
        ends_at = self._clock() + self._plan.seconds
        running = [asyncio.create_task(client.run(), name=client.name) for client in self._clients]
        try:
            await asyncio.sleep(1.0)
            while self._clock() + self._plan.quiet < ends_at:
                await self._faults.burst(self._plan.burst, self._plan.gap)
                await self._quiet(running)
            await self._end(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        leaks = await self._rest(rest)
        self._stage.look_for_crashes()
        faults = dict(self._faults.done)
        faults["disconnect"] = sum(client.disconnects for client in self._clients)
        faults["slow_reader"] = sum(client.slow_reads for client in self._clients)
        line = verdict(self._tally, faults, leaks, self._recovery, self._stage.crashes)
        return Outcome(line, [*self._tally.notes, *self._angry_logs()], self._faults.notes)

    async def _quiet(self, running: Sequence[asyncio.Task[None]]) -> None:
        """A window without faults: how long until every client has got something."""
        healed = self._faults.healed_at
        until = self._clock() + self._plan.quiet
        slowest = 0.0
        missing = [client for client in self._clients if client.progress.watched]
        while self._clock() < until:
            for task in running:
                if task.done():
                    task.result()
            still = [client for client in missing if client.seen <= healed]
            if len(still) < len(missing):
                slowest = self._clock() - healed
            missing = [client for client in still if client.progress.watched]
            await asyncio.sleep(0.05)
        self._recovery.append(self._plan.quiet if missing else slowest)
        self._faults.say(
            f"recovered in {self._recovery[-1]:.2f} s; not: {[one.told_of() for one in missing]}"
        )
        self._faults.say(str(dict(self._tally.errors)))

    async def _moment(self, when: str) -> None:
        """Until some stream is at its first id, in its middle, or one id before its end; or 3 s."""
        until = self._clock() + 3.0
        while self._clock() < until:
            for client in self._clients:
                if client.at(when):
                    return
            await asyncio.sleep(0.005)

    async def _end(self, running: Sequence[asyncio.Task[None]]) -> None:
        """Let the clients finish what they have asked for."""
        for client in self._clients:
            client.stopping = True
        ended, late = await asyncio.wait(running, timeout=ENDED_WITHIN)
        for task in ended:
            task.result()
        if late:
            self._tally.hangs += len(late)
            self._tally.notes.append(f"not ended {ENDED_WITHIN} s after the last fault: {len(late)} clients")

    # --- at rest --------------------------------------------------------------------------------------------

    async def _at_rest(self) -> dict[str, Held]:
        """What each node has before anything is asked: the most of some looks."""
        looks = []
        for _ in range(3):
            looks.append({name: await self._stage.held(name) for name in NODES})
            await asyncio.sleep(0.2)
        return {
            name: Held(
                {"tasks": max(look[name].counts["tasks"] for look in looks)},
                max(look[name].sockets for look in looks),
            )
            for name in NODES
        }

    async def _rest(self, rest: dict[str, Held]) -> dict[str, dict[str, float]]:
        """What is still held once everything had time to end."""
        if await self._stage.until_ready(RESTED_WITHIN) is None:
            self._tally.notes.append("the mesh has not come together again")
        until = self._clock() + RESTED_WITHIN
        while True:
            leaks: dict[str, dict[str, float]] = {}
            for name, (role, _) in NODES.items():
                try:
                    found = leaked(role, await self._stage.held(name), rest[name])
                except OSError:
                    found = {"no answer": 1.0}
                if found:
                    leaks[name] = found
            self._faults.say(f"still held: {leaks}")
            if not leaks or self._clock() > until:
                return leaks
            await asyncio.sleep(0.5)

    def _angry_logs(self) -> list[str]:
        """Lines of the nodes' logs that tell of a bug."""
        found = []
        for file in sorted(self._stage.logs.glob("*.log")):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            angry = [line for line in lines if any(mark in line for mark in _ANGRY)]
            found += [f"{file.stem}: {line[:600]}" for line in angry]
        return found[:40]


async def run(plan: Plan, directory: Path) -> Outcome:
    """A run in `directory`, which keeps the nodes' logs."""
    opening = open_stage(
        directory, rate_mbit=plan.rate_mbit, rtt_ms=plan.rtt_ms, pool_blocks=plan.pool_blocks
    )
    async with opening as stage:
        vocab = json.loads((directory / "model" / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        return await Story(plan, stage, vocab).run()
