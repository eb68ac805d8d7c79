"""Random lives of a whole mesh, from one seed: shape, load, faults, and what has to hold in the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.simulation.nodes import Node
from shared.engine.api import StepPlan, StepResult, step_failed
from shared.engine.synthetic import SyntheticTiming
from shared.errors import ApiError, DeadlineExceeded, InvalidRequest, NanLogits, Overloaded, RequestFailed
from tests.support.mesh import VOCAB
from tests.support.mesh_client import Client
from tests.support.whole_mesh import ROUTER, WORKER, WholeMesh, prompt

HARMS = (
    "cut",
    "cut router",
    "part",
    "lose",
    "restart",
    "restart router",
    "damage",
    "flush",
    "engine",
    "drain",
)

TROUBLE = (
    "divergence_total",
    "unexpected_messages_total",
    "strays_total",
    "chunks_damaged_total",
    "transfers_out_stalled_total",
    "attach_stale_total",
    "attach_chain_mismatch_total",
    "admit_timeouts_total",
    "owner_stalls_total",
    "resumes_total",
    "relay_firsts_missed_total",
    "workers_lost_total",
    "failed_internal_total",
    "failed_nan_total",
    "failed_stalled_total",
    "failed_timeout_total",
)
"""Counters that stay at zero while nothing breaks."""


class Weather:
    """A mesh, requests and harms at random times. `harms`: the kinds that may happen."""

    def __init__(
        self, seed: int, *, requests: int, blocks: tuple[int, ...] = (200,), harms: tuple[str, ...] = ()
    ) -> None:
        rng = self.rng = random.Random(seed)
        names = [
            f"{role}{number}"
            for role in ("p", "rld", "md")
            for number in range(1, rng.choice((1, 1, 2, 3)) + 1)
        ]
        self.mesh = WholeMesh(
            *names,
            seed=seed,
            blocks={name: rng.choice(blocks) for name in names},
            wan=rng.choice((2e3, 8e3, 3e4, 0.0)),
            lan=rng.choice((5e4, 0.0)),
            delay=rng.choice((0.001, 0.02, 0.15)),
            jitter=rng.choice((0.0, 0.01)),
            chunk=rng.choice((50, 64, 100, 256)),
            lanes=rng.choice((1, 1, 2)),
            worker=msgspec.structs.replace(
                WORKER,
                token_budget=rng.choice((4, 16)),
                max_chunk_tokens=rng.choice((7, 16, 32)),
                growth_tokens=rng.choice((4, 16)),
                max_running=rng.choice((3, 16)),
                max_queued=rng.choice((2, 32)),
                relay_max_tokens=rng.choice((12, 512)),
            ),
            router=msgspec.structs.replace(
                ROUTER,
                md_local_tokens=rng.choice((0, 8, 24)),
                md_local_busy=rng.choice((1.0, 4.0)),
                catch_up_backlog=rng.choice((0, 4, 64)),
                catch_up_rounds=rng.choice((0, 1, 2)),
                relay=rng.random() < 0.9,
                replace_wait=12.0,
            ),
            routers=("r", "s") if rng.random() < 0.25 else ("r",),
            check_every=1,
            timings={
                name: SyntheticTiming(
                    step=rng.choice((0.001, 0.006, 0.02)), token=rng.choice((0.0001, 0.001))
                )
                for name in names
            },
        )
        self.harms = harms
        self.ample = min(blocks) >= 200
        self.bases = [prompt(80, rng.getrandbits(32)) for _ in range(3)]
        self.refused = 0
        spread = rng.choice((0.05, 1.0, 4.0))
        start = self.mesh.sim.now
        for _ in range(requests):
            self._at(start + rng.random() * spread, self.begin)
        for _ in range(rng.randint(1, 6) if harms else 0):
            self._at(start + rng.random() * (spread + 1.0), self.harm)

    def _at(self, when: float, act: Callable[[], Any]) -> None:
        self.mesh.sim.at(when, act)

    def _later(self, seconds: float, act: Callable[[], Any]) -> None:
        self._at(self.mesh.sim.now + seconds, act)

    # --- load -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """One request, or the next turn of an answered one."""
        rng, mesh = self.rng, self.mesh
        router = rng.choice(sorted(mesh.routers))
        if not mesh.sim.nodes[router].alive:
            return
        base = rng.choice(self.bases)
        done = [client for client in mesh.clients.values() if client.outcome == "done"]
        if done and rng.random() < 0.3:
            base = rng.choice(done).log[:300]
        length = rng.choice((len(base), rng.randint(1, len(base)), 4 * rng.randint(1, len(base) // 4 + 1)))
        ids = base[:length]
        if rng.random() < 0.5:
            ids = ids + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 24))]
        try:
            client = mesh.submit(
                ids,
                rng.choice((1, 2, 3, 8, 40, 100)),
                seed=rng.getrandbits(32),
                temperature=rng.choice((0.0, 1.0)),
                stop_ids=rng.sample(range(VOCAB), rng.choice((0, 0, 5, 60))),
                logprobs=rng.choice((-1, 0, 2)),
                salt=rng.choice((b"", b"", b"tenant")),
                router=router,
                relay_allowed=rng.random() < 0.9,
                deadline=rng.choice((3.0, 40.0, 40.0)),
            )
        except ApiError:
            self.refused += 1
            return
        if rng.random() < 0.3:
            self._later(rng.choice((0.02, 0.2, 1.0)) * rng.random(), lambda: mesh.cancel(client))
        elif rng.random() < 0.3:
            self.stop_soon(client, len(ids) + rng.randint(1, 30))

    def stop_soon(self, client: Client, at: int) -> None:
        """A stop string is found once the log is so long."""
        if client.outcome:
            return
        if len(client.log) >= at:
            self.mesh.stop_at(client, at)
        else:
            self._later(0.01, lambda: self.stop_soon(client, at))

    # --- harm -----------------------------------------------------------------------------------------------

    def harm(self) -> None:
        """Something breaks, and mends after a while."""
        rng, mesh = self.rng, self.mesh
        kind = rng.choice(self.harms)
        names = sorted(mesh.workers)
        name, other = rng.sample(names, 2)
        router = rng.choice(sorted(mesh.routers))
        wait = rng.choice((0.01, 0.3, 0.3, 3.0, 3.0, 6.0, 33.0))
        match kind:
            case "cut":
                mesh.sim.cut(name, other)
                self._later(wait, lambda: mesh.sim.heal(name, other))
            case "cut router":
                mesh.sim.cut(name, router)
                self._later(wait, lambda: mesh.sim.heal(name, router))
            case "part":
                others = [one for one in (*names, *mesh.routers) if one != name]
                for one in others:
                    mesh.sim.cut(name, one)
                for one in others:
                    self._later(wait, lambda one=one: mesh.sim.heal(name, one))  # type: ignore[misc]
            case "lose":
                ends = [name, rng.choice((other, router))]
                rng.shuffle(ends)
                mesh.sim.lose(*ends, apart=rng.choice((0.0, 0.1, 2.0)))
                self._later(wait, mesh.join)
                self._later(wait, mesh.meet)
            case "restart":
                if mesh.sim.nodes[name].alive:
                    mesh.sim.kill(name)
                    self._later(wait, lambda: self.revive(name))
            case "restart router":
                if mesh.sim.nodes[router].alive:
                    mesh.kill_router(router)
                    self._later(wait, lambda: self.revive(router))
            case "damage":
                mesh.sim.damage = lambda chunk, data: self.flip(data)
                self._later(0.5, self.mend)
            case "flush":
                mesh.sim.call(mesh.sim.nodes[router], mesh.routers[router].flush)
            case "engine":
                mesh.sim.tamper = self.spoil
                self._later(0.1, self.mend)
            case "drain":
                self.drain(router, name, on=True)
                self._later(wait, lambda: self.drain(router, name, on=False))

    def drain(self, router: str, name: str, *, on: bool) -> None:
        node, core = self.mesh.sim.nodes[router], self.mesh.routers[router]
        if node.alive:
            self.mesh.sim.call(node, lambda: core.drain_worker(name, on=on))

    def revive(self, name: str) -> None:
        if name in self.mesh.routers:
            self.mesh.boot_router(name)
        else:
            self.mesh.boot(name)
        self.mesh.join()

    def flip(self, data: bytearray) -> None:
        if self.rng.random() < 0.1:
            data[self.rng.randrange(len(data))] ^= 1

    def spoil(self, node: Node, plan: StepPlan, result: StepResult) -> StepResult:
        """A forward that raises as a whole, or the scores of one sequence are no numbers."""
        if self.rng.random() < 0.1:
            return step_failed(plan, RuntimeError("the forward raised"), result.seconds)
        drawn = [NanLogits("no scores") if self.rng.random() < 0.1 else one for one in result.drawn]
        return StepResult(tuple(drawn), result.seconds)

    def mend(self) -> None:
        self.mesh.sim.damage = lambda chunk, data: None
        self.mesh.sim.tamper = lambda node, plan, result: result

    # --- the end --------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Until every request has ended, within its deadline; then until nothing is held any more."""
        mesh = self.mesh
        start = mesh.sim.now
        mesh.sim.run(
            start + 60.0,
            stop=lambda: mesh.sim.now > start + 6 and all(c.outcome for c in mesh.clients.values()),
        )
        stuck = [client for client in mesh.clients.values() if not client.outcome]
        assert not stuck, self.tell(stuck[0])
        mesh.settle(140.0)
        self.check_ends()
        self.check_prompts()
        if not self.harms:
            self.check_calm()

    def check_ends(self) -> None:
        """Every request ended as it may: answered, left by its client, or with an error that says why."""
        for client in self.mesh.clients.values():
            if client.error is None:
                continue
            known = isinstance(client.error, Overloaded | DeadlineExceeded)
            if "engine" in self.harms or "damage" in self.harms:
                known |= isinstance(client.error, RequestFailed)
            if not self.ample:  # it has outgrown the pools
                known |= isinstance(client.error, RequestFailed | InvalidRequest)
            assert known, f"{client.rid}: {client.error!r}"

    def check_calm(self) -> None:
        """Nothing has happened that only trouble brings."""
        for name, counters in [(n, dict(c.mesh.counters)) for n, c in self.mesh.routers.items()] + [
            (name, self.mesh.counters(name)) for name in self.mesh.workers
        ]:
            strange = {kind: counters[kind] for kind in TROUBLE if counters.get(kind)}
            assert not strange, f"{name}: {strange}"
        for client in self.mesh.clients.values():
            hurried = client.deadline < 10.0
            assert client.error is None or hurried or not self.ample, f"{client.rid}: {client.error!r}"

    def check_prompts(self) -> None:
        """I2, where nothing has emptied a cache."""
        if self.ample and not {"restart", "flush"} & set(self.harms):
            assert self.mesh.check_prompts() <= self.mesh.dropped()

    def tell(self, client: Client) -> str:
        """All that is known of a request that hangs."""
        r = self.mesh.routers[client.router].requests.get(client.rid)
        return f"{client.rid} hangs: {r and (r.phase, r.trace.reasons, [vars_of(x) for x in r.live_legs()])}"


def vars_of(leg: Any) -> dict[str, Any]:
    return {name: getattr(leg, name) for name in leg.__slots__ if name != "last_hash"}
