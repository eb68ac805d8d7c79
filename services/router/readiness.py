"""Which pipelines are possible now, with reasons: what /ready shows. Reads the fleet; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.router.mesh import Mesh
from services.router.worker import PoolKey, Worker
from shared.policy.pipeline import Pipeline
from shared.wire.messages import Role


def readiness(mesh: Mesh, *, draining: bool, models: Sequence[str] = ()) -> dict[str, Any]:
    """JSON-ready: `ready` is true where some pipeline can take a request; `models` says so of each served
    name."""
    fleet = mesh.fleet
    names = sorted(models or fleet.models())
    pools = [_pool(mesh, pool, names) for pool in fleet.pools()]
    able = {name for pool in pools if _possible(pool) for name in pool["models"]}
    reasons = [] if fleet.all() else ["no worker has joined"]
    if fleet.all() and len(names) > 1:
        reasons += [f"{name}: no pipeline is possible" for name in names if name not in able]
    if draining:
        reasons.append("this router is shutting down")
    return {
        "ready": bool(able) and not draining,
        "reasons": reasons,
        "models": {name: name in able for name in names},
        "pools": pools,
        "workers": [_worker(worker) for worker in sorted(fleet.all(), key=lambda one: one.node)],
    }


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "node": worker.node,
        "role": str(worker.role),
        "datacenter": worker.peer.datacenter,
        "model": "" if worker.announce is None else worker.announce.model,
        "usable": _usable(worker),
        "misfit": worker.misfit,
        "suspect": worker.suspect,
        "draining": worker.announce is not None and worker.announce.draining,
        "breaker": str(worker.breaker.state),
        "peers": [] if worker.announce is None else list(worker.announce.peers),
    }


def _usable(worker: Worker) -> bool:
    announce = worker.announce
    return not (worker.suspect or worker.misfit or announce is None or announce.draining)


def _possible(pool: dict[str, Any]) -> bool:
    return any(road["possible"] for road in pool["pipelines"].values())


def _pool(mesh: Mesh, pool: PoolKey, names: Sequence[str]) -> dict[str, Any]:
    """The pipelines of one pool. Pairs count only where the two workers have a KV session."""
    fleet = mesh.fleet
    by_role = {
        role: [one for one in fleet.of(role, pool) if _usable(one)]
        for role in (Role.PREFILL, Role.RELAY, Role.MAIN)
    }
    mains, prefills, relays = by_role[Role.MAIN], by_role[Role.PREFILL], by_role[Role.RELAY]
    pairs = [(p, d) for p in prefills for d in mains if fleet.connected(p.node, d.node)]
    lan = [(p, r) for p, _ in pairs for r in relays if fleet.connected(p.node, r.node)]
    no_main = "" if mains else "no usable main decode worker"
    no_pair = no_main or ("" if prefills else "no usable prefill worker")
    no_pair = no_pair or ("" if pairs else "no prefill worker has a KV session with a main decode worker")
    no_relay = no_pair or ("" if mesh.policy.relay else "relays are switched off")
    no_relay = no_relay or ("" if relays else "no usable relay worker")
    no_relay = no_relay or ("" if lan else "no relay has a KV session with a prefill worker")
    reasons = {
        Pipeline.MD: no_main,
        Pipeline.P_MD: no_pair,
        Pipeline.P_RLD_MD: no_relay,
        Pipeline.P_RLD: no_relay or ("" if mesh.policy.singular else "singular requests are switched off"),
    }
    return {
        "models": [name for name in names if pool in fleet.pools(name)],
        "fingerprint": pool.fingerprint,
        "block_tokens": pool.block_tokens,
        "pipelines": {
            str(pipeline): {"possible": not reason, "reason": reason} for pipeline, reason in reasons.items()
        },
    }
