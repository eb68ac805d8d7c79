"""One run of chaos: a mesh, clients, bursts of faults with quiet windows, and what is left at the end."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.chaos.asking import Manner
from tests.chaos.clients import Client
from tests.chaos.faults import Faults
from tests.chaos.judging import Tally, Trouble, verdict
from tests.chaos.knowing import Replayed, Synthetic
from tests.chaos.scene import FEW, Scene
from tests.chaos.stage import Held, Stage, leaked, open_stage

ENDED_WITHIN = 120.0
"""Seconds that the last requests may take."""
RESTED_WITHIN = 60.0
"""Seconds until nothing may be held any more; longer than any lease."""
_EOS = 2  # of the development model
SEEN = ("accept_damage", "publish_early", "append_twice", "name_terms_twice", "forget_releases")
"""Checks of ledger and log that clients, or what is held at the end, show to be off."""
_SEEN_AT_REST = ("forget_releases",)  # checks whose want shows once all is over
_LONG = 60.0  # seconds from which on a run has pauses that are longer than the leases
_ANGRY = ("Traceback", '"level": "error"', '"level":"error"')


@dataclass(frozen=True)
class Plan:
    """How long, how many, how wild. Seconds; `burst` faults at most `gap` seconds apart, of these `kinds`
    (all where there are none). `hasty`: ends with the first wrong thing."""

    seconds: float = 600.0
    seed: int = 1
    clients: int = 32
    burst: int = 7
    gap: float = 1.5
    quiet: float = 10.0
    patience: float = 30.0  # calm seconds without a token and without an error that are a hang
    kinds: Sequence[str] = ()
    hasty: bool = False
    rested_within: float = RESTED_WITHIN
    manner: Manner = field(default_factory=Manner)
    scene: Scene = field(default_factory=Scene)


@dataclass(frozen=True)
class Outcome:
    """The line of a run, and notes that help to find out why."""

    line: dict[str, object]
    notes: Sequence[str]
    script: Sequence[str]


class Story:
    """Runs a plan on a stage."""

    def __init__(self, plan: Plan, stage: Stage, knows: Synthetic | Replayed) -> None:
        self._plan = plan
        self._stage = stage
        self._clock = asyncio.get_running_loop().time
        self._tally = Tally()
        self._knows = knows
        fellows = [plan.scene.workers(role) for role in ("main_decode", "prefill")]
        self._trouble = Trouble(fellows=fellows)
        draw = random.Random(plan.seed)
        stems = [[draw.randrange(3, 250) for _ in range(plan.manner.stem)] for _ in range(6)]
        self._clients = [
            Client(
                f"client-{at}",
                stage.urls[at % len(stage.urls)],
                knows,
                plan.manner,
                draw.getrandbits(32),
                self._tally,
                self._trouble,
                stems,
                plan.patience,
            )
            for at in range(plan.clients)
        ]
        for at, client in enumerate(self._clients):
            client.spared = at % len(stage.urls) > 0
        long = plan.seconds >= _LONG
        self._faults = Faults(stage, draw.getrandbits(32), self._trouble, long=long, kinds=plan.kinds)
        self._recovery: list[float] = []

    async def run(self) -> Outcome:
        """The whole of it."""
        rest = await self._at_rest()
        ends_at = self._clock() + self._plan.seconds
        running = [asyncio.create_task(client.run(), name=client.name) for client in self._clients]
        try:
            await asyncio.sleep(1.0)
            while self._clock() + self._plan.quiet < ends_at and not self._spoiled():
                await self._faults.burst(self._plan.burst, self._plan.gap)
                await self._quiet(running)
            if not self._spoiled():
                await self._end(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        leaks = {} if self._spoiled() else await self._rest(rest)
        self._stage.look_for_crashes()
        model = self._plan.scene.model
        if model is not None and isinstance(self._knows, Replayed):
            await asyncio.to_thread(self._knows.judge, model, _EOS, self._tally)
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
            self._stage.look_for_crashes()
            if self._spoiled():
                return
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

    def _spoiled(self) -> bool:
        """Whether a hasty run has seen enough."""
        tally = self._tally
        found = tally.wrong or tally.duplicated or tally.missing or tally.hangs or self._stage.crashes
        return self._plan.hasty and bool(found)

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
            looks.append({name: await self._stage.held(name) for name in self._stage.nodes})
            await asyncio.sleep(0.2)
        return {
            name: Held(
                {"tasks": max(look[name].counts["tasks"] for look in looks)},
                max(look[name].sockets for look in looks),
            )
            for name in self._stage.nodes
        }

    async def _rest(self, rest: dict[str, Held]) -> dict[str, dict[str, float]]:
        """What is still held once everything had time to end."""
        within = self._plan.rested_within
        if await self._stage.until_ready(within) is None:
            self._tally.notes.append("the mesh has not come together again")
        until = self._clock() + within
        while True:
            leaks: dict[str, dict[str, float]] = {}
            for name, (role, _) in self._plan.scene.nodes.items():
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


def really(plan: Plan, model: Path) -> Plan:
    """The same with a real model, which draws some ids a second: few clients that ask little."""
    manner = Manner(context=240, stem=100, more=(1, 7, 40), tokens=(1, 2, 10, 20, 24), deadline=120.0)
    scene = replace(plan.scene, model=model, rate_mbit=200.0, pool_blocks=64)
    return replace(plan, clients=min(plan.clients, 4), burst=min(plan.burst, 3), manner=manner, scene=scene)


def hastily(plan: Plan, check: str) -> Plan:
    """The same without a check, to be red as soon as that can be seen: one worker of each role, few clients,
    no fault but the one that the check is for."""
    scene = replace(plan.scene, nodes=FEW, without=check)
    return replace(
        plan,
        seconds=6.0 if check in _SEEN_AT_REST else 60.0,
        clients=6,
        burst=2,
        quiet=3.0,
        patience=8.0,
        kinds=("damage",),
        hasty=True,
        rested_within=4.0,
        scene=scene,
    )


async def run(plan: Plan, directory: Path) -> Outcome:
    """A run in `directory`, which keeps the nodes' logs."""
    async with open_stage(directory, plan.scene) as stage:
        knows: Synthetic | Replayed = Replayed()
        if plan.scene.model is None:
            text = (directory / "model" / "config.json").read_text(encoding="utf-8")
            knows = Synthetic(json.loads(text)["vocab_size"])
        return await Story(plan, stage, knows).run()
