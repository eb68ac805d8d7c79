"""What a client feels at the hand-off from a relay to main decode: the wait at the seam.

The real cores in virtual time. The wait is that between the relay's last id and main decode's first, as the
router shows them. Beside each: the longest wait of the same request without a relay, whose second id waits
for its KV. What messages weigh is counted from the messages themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh, role_of
from benchmarks.simulation.timed import StepCosts
from benchmarks.simulation.workers import WorkerNode
from services.router.requests import Done, Tokens
from shared.policy.config import RouterPolicy, WorkerPolicy
from shared.wire import codec
from shared.wire.framing import CONTROL_PREFIX_BYTES
from shared.wire.messages import Feed, Message, Rid, Role

STEP = 0.02
TOKEN = 1 / 8_000
ROW = 0.0002
"""A relay's step, one token of an extend, one more sequence in a step: seconds."""

PROMPT = 2_048
_BLOCK = 128
_FOR_EVER = 500_000
_AFTER = 24  # ids that main decode draws after the cut
WORKER = WorkerPolicy(max_running=128, max_queued=256, relay_max_tokens=4_096)
IDS = 32  # a message of fewer ids is not judged by its bytes
RELAYED = RouterPolicy(md_local_tokens=0, relay_margin=-1e3, singular=False)
ONE_SHOT = msgspec.structs.replace(RELAYED, catch_up_backlog=1 << 20)
CATCH_UP = RELAYED


@dataclass(frozen=True, slots=True)
class Cell:
    """One place in the matrix. `backlog`: ids that the relay has drawn as main decode gets complete; `speed`
    of main decode as a part of the relay's; `at_once` requests are cut together."""

    mode: str
    backlog: int
    rtt_ms: float
    speed: float
    at_once: int = 1
    busy: bool = False

    def __str__(self) -> str:
        return f"{self.mode}, backlog {self.backlog}, RTT {self.rtt_ms:g} ms, MD at {self.speed:g} x RLD"

    def plan(self) -> MeshPlan:
        policy = ONE_SHOT if self.mode == "one-shot" else CATCH_UP
        if self.mode == "no relay":
            policy = msgspec.structs.replace(RELAYED, relay=False)
        lasts = max(1, self.backlog) * STEP if self.at_once == 1 else 1e-3
        return MeshPlan(
            prefills=1,
            relays=1,
            mains=1,
            block_tokens=_BLOCK,
            wan_rate=PROMPT * 70_272 / lasts,
            wan_rtt=self.rtt_ms / 1e3,
            decode=StepCosts(STEP, TOKEN, ROW),
            router=policy,
            worker=WORKER,
        )


@dataclass(frozen=True, slots=True)
class Seam:
    """One request's hand-off. `wait`: seconds; `given`: ids that main decode was to extend over by itself."""

    wait: float
    given: int
    rounds: int
    mode: str


class Weights:
    """Bytes an id, frame and header included, of fed runs of some length."""

    def __init__(self) -> None:
        self.by_id: list[float] = []

    def see(self, _source: str, _target: str, message: Message, payload: bytes) -> None:
        """One message that was sent."""
        ids = len(payload) // 4
        if isinstance(message, Feed) and ids >= IDS:
            size = CONTROL_PREFIX_BYTES + len(codec.encode(message)) + len(payload)
            self.by_id.append(size / ids)


class SeamMesh(VirtualMesh):
    """Keeps when ids came to the router, and who drew them."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self._speed = cell.speed
        self._runs: dict[Rid, list[tuple[float, Role | None]]] = {}
        self._ends: dict[Rid, dict[str, Any]] = {}
        super().__init__(cell.plan(), seed)

    def boot(self, name: str) -> WorkerNode:
        """Main decodes have a speed of their own."""
        whole, speed = self.plan, self._speed
        if role_of(name) is Role.MAIN:
            self.plan = replace(whole, decode=StepCosts(STEP / speed, TOKEN / speed, ROW / speed))
        node = super().boot(name)
        self.plan = whole
        return node

    def _deliver(self) -> None:
        for rid, event in self.core.take_events():
            match event:
                case Tokens(owner=owner):
                    self._runs.setdefault(rid, []).append((self.sim.now, owner))
                case Done(trace=trace):
                    self._ends[rid] = dict(trace)
            client = self._live.get(rid)
            if client is None:
                continue
            client.take(self.sim.now, event)
            if client.outcome:
                del self._live[rid]
                self.ended(client)

    def until(self, clients: Sequence[Client]) -> None:
        """Until these have ended."""
        assert self.sim.run(
            self.sim.now + 600.0, stop=lambda: all(one.outcome for one in clients), most=1 << 40
        )

    def seams(self, clients: Sequence[Client]) -> list[Seam]:
        """Of those of them that a relay has handed over."""
        found = []
        for rid in [client.rid for client in clients if client.rid is not None]:
            runs, cut = self._runs[rid], self._ends[rid]["cut"]
            for (before, one), (after, other) in itertools.pairwise(runs):
                if one is Role.RELAY and other is Role.MAIN:
                    found.append(Seam(after - before, cut["backlog"], cut["rounds"], cut["mode"]))
        return found


def measure(cell: Cell, requests: int, seed: int) -> tuple[list[Seam], list[float], Weights]:
    """Requests one after the other (or all at once), each with a prompt of its own. `busy`: main decode and
    relay also draw for others, so that a step is under way whenever something comes.
    """
    mesh = SeamMesh(cell, seed)
    weights = Weights()
    mesh.sim.spy = weights.see
    draw = mesh.random
    outputs = cell.backlog + _AFTER + int(2 * (cell.rtt_ms / 1e3 + 0.5) / STEP)
    _teach(mesh, outputs)
    if cell.busy:
        mesh.submit(list(draw.randbytes(_BLOCK)), _FOR_EVER, max_tokens=_FOR_EVER)
        mesh.run(5.0)
    if cell.at_once > 1:
        asked = _together(mesh, cell, outputs)
    else:
        asked = [_alone(mesh, outputs) for _ in range(requests)]
    failed = [client for client in asked if client.outcome != "done"]
    assert not failed, failed[0]
    return mesh.seams(asked), [client.stall for client in asked], weights


def _teach(mesh: SeamMesh, outputs: int) -> None:
    """Prefill and main decode learn what a step takes: their first ones are small."""
    client = mesh.submit(list(mesh.random.randbytes(2 * _BLOCK + _BLOCK // 2)), outputs)
    mesh.until([client])
    mesh.run(5.0)


def _alone(mesh: SeamMesh, outputs: int) -> Client:
    mesh.run(mesh.random.random() * STEP)
    client = mesh.submit(list(mesh.random.randbytes(PROMPT)), outputs)
    mesh.until([client])
    return client


def _together(mesh: SeamMesh, cell: Cell, outputs: int) -> list[Client]:
    """All relays draw while the line between P and main decode is cut; then all KV comes as good as at
    once."""
    mesh.sim.cut("p1", "md1")
    draw = mesh.random
    clients = [mesh.submit(list(draw.randbytes(_BLOCK)), outputs + 600) for _ in range(cell.at_once)]
    assert mesh.sim.run(
        mesh.sim.now + 60.0, stop=lambda: all(one.made > cell.backlog for one in clients), most=1 << 40
    )
    mesh.sim.heal("p1", "md1")
    mesh.until(clients)
    return clients


def bound(cell: Cell, seam: Seam) -> float:
    """RTT + 2 steps, and in one-shot mode the extend over what is handed over at once. A step is main
    decode's where that is the slower one: one that runs when the ids come, and its own. Extends beside
    decodes make a step longer, by policy up to `extend_stretch`.
    """
    rows = (cell.at_once + cell.busy) * ROW
    stretch = WORKER.extend_stretch if cell.at_once > 1 or cell.busy else 1.0
    step = (STEP + rows) * max(1.0, stretch / cell.speed)
    extend = 0.0
    if seam.mode == "one_shot":
        together = min(cell.at_once, RELAYED.cuts_at_once)
        extend = together * seam.given * TOKEN / cell.speed * (stretch / (stretch - 1) if stretch > 1 else 1)
    return cell.rtt_ms / 1e3 + 2 * step + extend
