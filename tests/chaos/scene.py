"""What a run of chaos stands on: nodes, the line, the engine; and the mesh file that follows. Data only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shared.runtime.settings import RoleName

ROUTER = "router-0"
Nodes = Mapping[str, tuple[RoleName, str]]
"""Node -> role and datacenter."""
NODES: Nodes = {
    ROUTER: ("router", "a"),
    "main-0": ("main_decode", "b"),
    "main-1": ("main_decode", "b"),
    "relay-0": ("relay", "a"),
    "relay-1": ("relay", "a"),
    "prefill-0": ("prefill", "a"),
    "prefill-1": ("prefill", "a"),
}
TWO_ROUTERS: Nodes = {**NODES, "router-1": ("router", "a")}
"""The second one is spared by all that is done to routers: its clients have no excuse."""
FEW: Nodes = {name: where for name, where in NODES.items() if not name.endswith("-1")}
_SENDS_TO: Mapping[RoleName, tuple[RoleName, ...]] = {
    "prefill": ("relay", "main_decode", "router"),
    "relay": ("main_decode", "router"),
    "main_decode": ("router",),
    "router": (),
}
_SYNTHETIC = """
[model]
path = {path}
name = "chaos"
engine = "synthetic"
block_tokens = 16
max_context = 4096
[synthetic]
block_bytes = 8192
step_ms = 5.0
[policy.link]
min_chunk = 2048
max_chunk = 3072
[policy.router]
md_local_tokens = 64
md_local_busy = 1.0
relay_margin = 0.0
catch_up_backlog = 16
singular_min_uncached = 512
singular_pool_fraction = 0.3
"""
_REAL = """
[model]
path = {path}
name = "chaos"
dtype = "float32"
block_tokens = 32
max_context = 1024
[policy.router]
md_local_tokens = 32
md_local_busy = 1.0
relay_margin = 0.0
catch_up_backlog = 8
singular_min_uncached = 96
singular_pool_fraction = 0.3
"""
"""The policies let every pipeline be taken by some requests; the synthetic one also cuts each block into
several chunks."""


@dataclass(frozen=True)
class Scene:
    """`model` is a real one's directory; None: the synthetic engine. `without`: a check that is switched off
    in every node."""

    nodes: Nodes = field(default_factory=lambda: NODES)
    rate_mbit: float = 20.0
    rtt_ms: float = 20.0
    pool_blocks: int = 1024
    model: Path | None = None
    without: str = ""

    def pairs(self) -> list[tuple[str, str]]:
        """Who dials whom."""
        return [
            (source, target)
            for source, (role, _) in self.nodes.items()
            for target, (other, _) in self.nodes.items()
            if other in _SENDS_TO[role]
        ]

    def peers(self, name: str) -> set[str]:
        """The workers with whom a worker has a KV session."""
        return {a if b == name else b for a, b in self.pairs() if name in (a, b)} - set(self.routers)

    def workers(self, role: RoleName) -> list[str]:
        """All of a role."""
        return [name for name, (its, _) in self.nodes.items() if its == role]

    @property
    def routers(self) -> list[str]:
        return self.workers("router")

    def far(self, source: str, target: str) -> bool:
        """Whether the line is between two nodes."""
        return self.nodes[source][1] != self.nodes[target][1]

    def module(self, role: str, tripwire: Path) -> list[str]:
        """What is run for a node, as after `python -m`."""
        more = ["--without", self.without] if self.without else []
        return ["tests.chaos.node", role, "--tripwire", str(tripwire), *more]

    def mesh_file(
        self,
        model: Path,
        ports: Mapping[str, int],
        http: Mapping[str, str],
        routes: Mapping[tuple[str, str], int],
    ) -> str:
        """mesh.toml, with a directory to read the model from. A TOML basic string is a JSON string."""
        text = [(_REAL if self.model else _SYNTHETIC).format(path=json.dumps(str(model)))]
        text += ["[[datacenters]]", 'name = "a"', "[[datacenters]]", 'name = "b"']
        text += ["[[lines]]", 'name = "a-b"', 'between = ["a", "b"]', f"rtt_ms = {self.rtt_ms}"]
        for name, (role, datacenter) in self.nodes.items():
            text += [
                "[[nodes]]",
                f'name = "{name}"',
                f'role = "{role}"',
                f'datacenter = "{datacenter}"',
                f'listen = "127.0.0.1:{ports[name]}"',
                f'http = "{http[name]}"',
                f"pool_blocks = {self.pool_blocks}",
            ]
        for (source, target), port in routes.items():
            text += [
                "[[routes]]",
                f'source = "{source}"',
                f'target = "{target}"',
                f'address = "127.0.0.1:{port}"',
            ]
        return "\n".join(text) + "\n"
