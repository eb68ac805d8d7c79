"""What a live mesh is made of: its shape, the ports it has, and the mesh file that follows from them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shared.policy.compression import Mode
from shared.policy.config import LinePolicy, LinkPolicy, RouterPolicy, WorkerPolicy
from shared.runtime.settings import (
    DatacenterConfig,
    HttpConfig,
    LineConfig,
    MeshConfig,
    ModelConfig,
    NodeConfig,
    PolicyConfig,
    RoleName,
    RouteConfig,
    SyntheticConfig,
    TracingConfig,
)
from tests.support.live_models import Model

SITE: dict[RoleName, str] = {"router": "a", "prefill": "a", "relay": "a", "main_decode": "b"}


@dataclass(frozen=True)
class Shape:
    """What a mesh is made of. Sections of the policy are given as the fields that differ from the default.

    `rate_mbit` and `rtt_ms` are those of the line; `lan`: what stands in one datacenter meets through a proxy
    too; `late` names nodes that `start` brings up later.
    """

    prefills: int = 1
    relays: int = 1
    mains: int = 1
    blocks: int = 256
    rate_mbit: float = 0.0
    rtt_ms: float = 0.0
    compress: Mode = "off"  # so that bytes on the line are those of blocks
    router: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)
    link: Mapping[str, Any] = field(default_factory=dict)
    line: Mapping[str, Any] = field(default_factory=dict)
    synthetic: Mapping[str, Any] = field(default_factory=dict)
    node: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    lan: bool = False
    late: tuple[str, ...] = ()
    http: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[Model, ...] = ()
    """Further models: the workers of each role run them in turn."""


def mesh_config(model: Model, shape: Shape, ports: Mapping[str, int]) -> MeshConfig:
    """The mesh file of a shape; `ports` by node name, and by node name with `.http`."""
    roles: list[tuple[str, RoleName]] = [("router-0", "router")]
    roles += [(f"main-{at}", "main_decode") for at in range(shape.mains)]
    roles += [(f"relay-{at}", "relay") for at in range(shape.relays)]
    roles += [(f"prefill-{at}", "prefill") for at in range(shape.prefills)]
    models = [model.config(), *(other.config() for other in shape.others)]
    nodes = tuple(
        NodeConfig(
            name=name,
            role=role,
            datacenter=SITE[role],
            model=_model_of(name, role, models),
            listen=f"127.0.0.1:{ports[name]}",
            address=f"127.0.0.1:{ports[name + '.wan']}" if name in shape.late and SITE[role] == "b" else "",
            http=f"127.0.0.1:{ports[name + '.http']}" if role == "router" else "",
            **{"pool_blocks": shape.blocks, **shape.node.get(name, {})},
        )
        for name, role in roles
    )
    routes = [
        RouteConfig(source=source, target=name, address=f"127.0.0.1:{ports[name + kind]}")
        for name, role in roles
        for source, kind in _roads(role, lan=shape.lan)
    ]
    return MeshConfig(
        model=None if shape.others else models[0],
        models=tuple(models) if shape.others else (),
        datacenters=(DatacenterConfig(name="a"), DatacenterConfig(name="b")),
        nodes=nodes,
        lines=(
            LineConfig(
                name="a-b",
                between=("a", "b"),
                rate_mbit=shape.rate_mbit,
                rtt_ms=shape.rtt_ms,
                compress=shape.compress,
            ),
        ),
        routes=tuple(routes),
        policy=PolicyConfig(
            link=LinkPolicy(**shape.link),
            line=LinePolicy(**shape.line),
            worker=WorkerPolicy(**shape.worker),
            router=RouterPolicy(**shape.router),
        ),
        tracing=shape.tracing,
        synthetic=SyntheticConfig(**{"block_bytes": 4096, "step_ms": 1.0, **shape.synthetic}),
        http=HttpConfig(**shape.http),
    )


def _model_of(name: str, role: RoleName, models: Sequence[ModelConfig]) -> str:
    if role == "router":
        return ""
    return models[int(name.rpartition("-")[2]) % len(models)].served


def _roads(role: RoleName, *, lan: bool) -> list[tuple[str, str]]:
    """Where a node of this role is dialled from, and through which proxy."""
    roads = {"router": [("b", ".wan")], "main_decode": [("a", ".wan")], "relay": [], "prefill": []}[role]
    return [*roads, *([("a", ".lan")] if lan and role in ("router", "relay") else [])]


def without(config: MeshConfig, names: Collection[str]) -> MeshConfig:
    """The mesh file as it was before these nodes."""
    return msgspec.structs.replace(
        config,
        nodes=tuple(node for node in config.nodes if node.name not in names),
        routes=tuple(route for route in config.routes if route.target not in names),
    )


def names_of(shape: Shape) -> list[str]:
    """All nodes of a shape, in the order in which they start."""
    names = ["router-0"]
    for kind, count in (("main", shape.mains), ("relay", shape.relays), ("prefill", shape.prefills)):
        names += [f"{kind}-{at}" for at in range(count)]
    return names


@contextlib.contextmanager
def reserved() -> Iterator[int]:
    """A free port that stays this test's: a socket is bound to it and never listens."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
