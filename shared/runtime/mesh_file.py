"""Reads and checks `mesh.toml`: unknown keys and impossible values are refused by key path, all at once."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from shared.errors import ConfigError
from shared.runtime.settings import LineConfig, MeshConfig, NodeConfig, RouteConfig, split_address


def load_mesh(path: str | Path) -> MeshConfig:
    """Read and check a mesh file. Raises ConfigError: one line per problem, each with its key's path."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {error.strerror}") from error
    return parse_mesh(text, str(file))


def parse_mesh(text: str, origin: str = "mesh.toml") -> MeshConfig:
    """Decode and check a mesh file's text."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(origin, f"is no TOML: {error}") from error
    try:
        mesh = msgspec.convert(raw, MeshConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(origin, _readable(str(error))) from error
    problems = list(_mesh_problems(mesh))
    if problems:
        raise ConfigError(origin, "\n  ".join(problems))
    return mesh


def _readable(message: str) -> str:
    """msgspec's `... - at `$.nodes[0].role`` as `nodes[0].role: ...`."""
    text, at, path = message.partition(" - at `$")
    return f"{path.strip('.`')}: {text}" if at and path.strip(".`") else message


def _mesh_problems(mesh: MeshConfig) -> list[str]:
    found: list[str] = []
    datacenters = [datacenter.name for datacenter in mesh.datacenters]
    names = [node.name for node in mesh.nodes]
    for path, values in (
        ("datacenters", datacenters),
        ("nodes", names),
        ("lines", [line.name for line in mesh.lines]),
    ):
        found += [
            f"{path}: the name {name!r} is used twice"
            for name in sorted({n for n in values if values.count(n) > 1})
        ]
    for index, node in enumerate(mesh.nodes):
        found += _node_problems(node, f"nodes[{index}]", datacenters)
    for index, line in enumerate(mesh.lines):
        found += _line_problems(line, f"lines[{index}]", datacenters)
    for index, route in enumerate(mesh.routes):
        found += _route_problems(route, f"routes[{index}]", names, datacenters)
    if mesh.model.block_tokens not in (8, 16, 32, 64, 128):
        found.append(f"model.block_tokens: {mesh.model.block_tokens} is not one of 8, 16, 32, 64, 128")
    if bool(mesh.security.tls_cert) != bool(mesh.security.tls_key):
        found.append("security.tls_cert: a certificate needs tls_key beside it, and the other way round")
    if mesh.security.tls_cert and not mesh.security.tls_ca:
        found.append("security.tls_ca: mutual TLS needs the certificates that peers are signed by")
    return found + _policy_problems(mesh)


def _node_problems(node: NodeConfig, path: str, datacenters: list[str]) -> list[str]:
    found = []
    if node.datacenter not in datacenters:
        found.append(f"{path}.datacenter: {node.datacenter!r} is not one of {', '.join(datacenters)}")
    if node.role == "router" and not node.http:
        found.append(f"{path}.http: a router needs host:port for its clients")
    if node.role != "router" and node.pool_blocks < 2:
        found.append(f"{path}.pool_blocks: {node.pool_blocks} is too few; at least 2")
    if node.slowdown <= 0:
        found.append(f"{path}.slowdown: {node.slowdown} is not above 0")
    for key, value in (("listen", node.listen), ("address", node.address), ("http", node.http)):
        if value:
            try:
                split_address(value, f"{path}.{key}")
            except ConfigError as error:
                found.append(str(error))
    return found


def _line_problems(line: LineConfig, path: str, datacenters: list[str]) -> list[str]:
    found = [
        f"{path}.between: {name!r} is not one of {', '.join(datacenters)}"
        for name in line.between
        if name not in datacenters
    ]
    if line.between[0] == line.between[1]:
        found.append(f"{path}.between: a line joins two different datacenters")
    if line.rate_mbit < 0 or line.rtt_ms < 0:
        found.append(f"{path}.rate_mbit: rates and times are not negative")
    if not 0 <= line.dscp <= 63:
        found.append(f"{path}.dscp: {line.dscp} is not in 0-63")
    return found


def _route_problems(route: RouteConfig, path: str, names: list[str], datacenters: list[str]) -> list[str]:
    found = []
    if route.target not in names:
        found.append(f"{path}.target: {route.target!r} is not a node")
    if route.source not in names and route.source not in datacenters:
        found.append(f"{path}.source: {route.source!r} is neither a node nor a datacenter")
    try:
        split_address(route.address, f"{path}.address")
    except ConfigError as error:
        found.append(str(error))
    return found


_FRACTIONS = frozenset(
    {
        "oldest_share",
        "send_pin_fraction",
        "unlanded_fraction",
        "align_fraction",
        "singular_pool_fraction",
        "rewarm_share",
    }
)


def _policy_problems(mesh: MeshConfig) -> list[str]:
    found = []
    sections = {
        "link": mesh.policy.link,
        "line": mesh.policy.line,
        "worker": mesh.policy.worker,
        "router": mesh.policy.router,
    }
    for section, policy in sections.items():
        for key in policy.__struct_fields__:
            value = getattr(policy, key)
            if isinstance(value, bool):
                continue
            if value < 0:
                found.append(f"policy.{section}.{key}: {value} is negative")
            elif key in _FRACTIONS and value > 1:
                found.append(f"policy.{section}.{key}: {value} is a fraction, at most 1")
    link = mesh.policy.link
    if link.min_chunk > link.max_chunk:
        found.append(f"policy.link.min_chunk: {link.min_chunk} is above max_chunk {link.max_chunk}")
    if link.suspect_after <= link.ping_every:
        found.append(
            f"policy.link.suspect_after: {link.suspect_after} s is not above ping_every {link.ping_every} s"
        )
    if link.lease <= link.suspect_after:
        found.append(f"policy.link.lease: {link.lease} s is not above suspect_after {link.suspect_after} s")
    if mesh.policy.worker.orphan_lease <= link.lease:
        found.append("policy.worker.orphan_lease: must be above policy.link.lease")
    return found
