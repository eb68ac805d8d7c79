"""What cannot be true of a whole mesh though each value alone could be: names, addresses, lines, routes.

Pure: says what is wrong by key path. Single values are `limits`; files and this machine are `local_checks`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Generator, Iterator, Sequence

import msgspec

from shared.errors import ConfigError
from shared.runtime.reading import Problem, did_you_mean
from shared.runtime.settings import (
    LineConfig,
    MeshConfig,
    ModelConfig,
    NodeConfig,
    RouteConfig,
    split_address,
)

_ANY_HOST = ("0.0.0.0", "::", "")
_TOLD_BLOCK, _TOLD_REST = 16, 1024
"""Bytes that a snapshot of a pool has for each block, and beside them at most."""


def mesh_problems(mesh: MeshConfig) -> Iterator[Problem]:
    """All that is wrong between keys, in the file's order."""
    yield from _names(mesh)
    for index, node in enumerate(mesh.nodes):
        yield from _node(mesh, node, f"nodes[{index}]")
    yield from _shared_addresses(mesh)
    for index, line in enumerate(mesh.lines):
        yield from _line(mesh, line, index)
    for index, route in enumerate(mesh.routes):
        yield from _route(mesh, route, index)
    yield from _models(mesh)
    yield from _security(mesh)
    yield from _policy(mesh)


def _names(mesh: MeshConfig) -> Iterator[Problem]:
    groups: tuple[tuple[str, list[str]], ...] = (
        ("datacenters", [each.name for each in mesh.datacenters]),
        ("nodes", [each.name for each in mesh.nodes]),
        ("lines", [each.name for each in mesh.lines]),
    )
    for group, names in groups:
        for index, name in enumerate(names):
            first = names.index(name)
            if name and first < index:
                yield Problem(f"{group}[{index}].name", f"{name!r} is the name of {group}[{first}] already")
    datacenters = {each.name for each in mesh.datacenters}
    for index, node in enumerate(mesh.nodes):
        if node.name and node.name in datacenters:
            yield Problem(f"nodes[{index}].name", f"{node.name!r} is a datacenter's name; call it otherwise")
    if all(node.role and node.role != "router" for node in mesh.nodes):  # a role that is none may be meant
        yield Problem("nodes", "there is no router; workers and clients need one")


def _node(mesh: MeshConfig, node: NodeConfig, path: str) -> Iterator[Problem]:
    datacenters = [each.name for each in mesh.datacenters]
    if node.datacenter not in datacenters:
        yield Problem(f"{path}.datacenter", _not_one_of(node.datacenter, datacenters, "a datacenter"))
    if node.role == "router" and not node.http:
        yield Problem(f"{path}.http", "a router needs host:port for its clients")
    yield from _model_of(mesh, node, path)
    if node.slowdown != 1 and all(model.engine != "synthetic" for model in _own(mesh, node)):
        yield Problem(f"{path}.slowdown", "only the synthetic engine can be slowed down; leave it out")
    most = (mesh.policy.link.max_control_payload - _TOLD_REST) // _TOLD_BLOCK
    if node.role != "router" and node.pool_blocks > most:
        text = f"{node.pool_blocks} are more than the {most} that a router can be told of"
        yield Problem(f"{path}.pool_blocks", f"{text}; raise policy.link.max_control_payload")
    listen = yield from _address(f"{path}.listen", node.listen)
    address = (yield from _address(f"{path}.address", node.address)) if node.address else None
    http = (yield from _address(f"{path}.http", node.http)) if node.http else None
    if listen is not None and not node.address:
        if listen[0] in _ANY_HOST:
            yield Problem(f"{path}.address", f"is needed: {node.listen} names no host that others could dial")
        elif listen[1] == 0 and node.role == "router" and not _routed(mesh, node):
            yield Problem(f"{path}.address", f"is needed: {node.listen} tells workers no port to dial")
    if address is not None and (address[0] in _ANY_HOST or address[1] == 0):
        yield Problem(f"{path}.address", f"{node.address} is nothing that others could dial")
    if listen is not None and listen[1] and node.http == node.listen:
        yield Problem(f"{path}.http", f"{node.http} is this node's listen too; give it a port of its own")
    yield from _open_doors(mesh, node, path, listen, http)


def _open_doors(
    mesh: MeshConfig,
    node: NodeConfig,
    path: str,
    listen: tuple[str, int] | None,
    http: tuple[str, int] | None,
) -> Iterator[Problem]:
    """Doors that other machines could reach without a key."""
    security = mesh.security
    if listen is not None and not is_loopback(listen[0]) and not (security.key_file or security.tls_cert):
        advice = "set security.key_file or security.tls_cert, or listen on 127.0.0.1"
        yield Problem(f"{path}.listen", f"{node.listen} is open to others and asks for no key; {advice}")
    if node.role == "router" and http and not is_loopback(http[0]) and not mesh.http.api_keys_file:
        advice = "set http.api_keys_file, or listen on 127.0.0.1 behind a proxy that asks"
        yield Problem(f"{path}.http", f"{node.http} is open to others and asks for no key; {advice}")


def _shared_addresses(mesh: MeshConfig) -> Iterator[Problem]:
    """Two nodes under one address: the second could not listen, or could not be told from the first."""
    seen: dict[tuple[str, str], str] = {}
    for index, node in enumerate(mesh.nodes):
        dialled = node.address or node.listen
        for key, value in (("address" if node.address else "listen", dialled), ("http", node.http)):
            here = f"nodes[{index}].{key}"
            host, _, port = value.rpartition(":")
            unclear = not value or port in ("", "0") or host in _ANY_HOST
            if unclear or (key != "http" and _routed(mesh, node)):
                continue
            scope = node.datacenter if key == "http" else ""
            other = seen.setdefault((scope, value), here)
            if other != here:
                yield Problem(here, f"{value} is {other} already")


def _line(mesh: MeshConfig, line: LineConfig, index: int) -> Iterator[Problem]:
    path = f"lines[{index}]"
    datacenters = [each.name for each in mesh.datacenters]
    for name in line.between:
        if name not in datacenters:
            yield Problem(f"{path}.between", _not_one_of(name, datacenters, "a datacenter"))
    if line.between[0] == line.between[1]:
        yield Problem(f"{path}.between", "a line joins two different datacenters")
    for earlier, other in enumerate(mesh.lines[:index]):
        if set(other.between) == set(line.between):
            yield Problem(f"{path}.between", f"lines[{earlier}] joins {' and '.join(line.between)} already")


def _route(mesh: MeshConfig, route: RouteConfig, index: int) -> Iterator[Problem]:
    path = f"routes[{index}]"
    nodes = [node.name for node in mesh.nodes]
    sources = [*nodes, *(each.name for each in mesh.datacenters)]
    if route.target not in nodes:
        yield Problem(f"{path}.target", _not_one_of(route.target, nodes, "a node"))
    if route.source not in sources:
        yield Problem(f"{path}.source", _not_one_of(route.source, sources, "a node or a datacenter"))
    if route.source == route.target:
        yield Problem(f"{path}.source", "a node needs no route to itself")
    for earlier, other in enumerate(mesh.routes[:index]):
        if (other.source, other.target) == (route.source, route.target):
            yield Problem(
                f"{path}.source", f"{route.source} has a route to {route.target} already: routes[{earlier}]"
            )
    address = yield from _address(f"{path}.address", route.address)
    if address is not None and address[1] == 0:
        yield Problem(f"{path}.address", f"{route.address} names no port to dial")


def _model_of(mesh: MeshConfig, node: NodeConfig, path: str) -> Iterator[Problem]:
    """Which model a node runs."""
    known = [model.served for model in mesh.served]
    if node.role == "router":
        if node.model:
            yield Problem(f"{path}.model", "a router serves all models; leave it out")
    elif node.model:
        if node.model not in known:
            yield Problem(f"{path}.model", _not_one_of(node.model, known, "a model"))
    elif len(known) > 1:
        yield Problem(f"{path}.model", f"is needed: this file has several models ({', '.join(known)})")


def _own(mesh: MeshConfig, node: NodeConfig) -> list[ModelConfig]:
    """What a node runs: every model where that is not clear."""
    served = mesh.served
    return [model for model in served if model.served == node.model] or list(served)


def _models(mesh: MeshConfig) -> Iterator[Problem]:
    if mesh.model is None and not mesh.models:
        yield Problem("model", "is missing")
    if mesh.model is not None and mesh.models:
        yield Problem("models", "goes instead of [model]: name every model in [[models]]")
    places = [("model", mesh.model)] if mesh.model is not None else []
    places += [(f"models[{index}]", model) for index, model in enumerate(mesh.models)]
    seen: dict[tuple[object, ...], str] = {}
    for path, model in places:
        yield from _model(mesh, model, path)
        kind = "synthetic" if model.engine == "synthetic" else model.dtype
        rows = (
            (f"{path}.name", ("name", model.served), f"{model.served!r} is the name of"),
            (f"{path}.path", (model.path, model.block_tokens, kind), "is the same pool of workers as"),
        )
        for place, key, text in rows:
            first = seen.setdefault(key, path)
            if first != path and model.path:
                yield Problem(place, f"{text} {first} already")


def _model(mesh: MeshConfig, model: ModelConfig, path: str) -> Iterator[Problem]:
    if model.max_context and model.max_context < model.block_tokens:
        yield Problem(
            f"{path}.max_context", f"{model.max_context} is less than one block of {model.block_tokens}"
        )
    step = 64 * model.block_tokens
    if model.engine == "synthetic" and mesh.synthetic.block_bytes % step:
        advice = f"give a multiple of {step}"
        yield Problem("synthetic.block_bytes", f"{mesh.synthetic.block_bytes} fits no block; {advice}")


def _security(mesh: MeshConfig) -> Iterator[Problem]:
    files = {key: getattr(mesh.security, key) for key in ("tls_cert", "tls_key", "tls_ca")}
    given = [key for key, value in files.items() if value]
    for key, value in files.items():
        if given and not value:
            yield Problem(f"security.{key}", f"is needed beside {' and '.join(given)}: TLS here is mutual")


def _policy(mesh: MeshConfig) -> Iterator[Problem]:
    link, worker, router = mesh.policy.link, mesh.policy.worker, mesh.policy.router
    ordered: tuple[tuple[str, msgspec.Struct, str, str], ...] = (
        ("policy.link", link, "min_chunk", "max_chunk"),
        ("policy.link", link, "max_control_payload", "resend_bytes"),
        ("policy.link", link, "reconnect_first", "reconnect_most"),
        ("policy.router", router, "breaker_first", "breaker_most"),
    )
    for path, policy, low, high in ordered:
        least, most = getattr(policy, low), getattr(policy, high)
        if least > most:
            yield Problem(f"{path}.{low}", f"{least} is above {high} {most}")
    apart = (
        ("policy.link.suspect_after", link.suspect_after, "policy.link.ping_every", link.ping_every),
        ("policy.link.lease", link.lease, "policy.link.suspect_after", link.suspect_after),
        ("policy.worker.orphan_lease", worker.orphan_lease, "policy.link.lease", link.lease),
    )
    for path, longer, other, shorter in apart:
        if longer <= shorter:
            yield Problem(path, f"{longer} s is not above {other} {shorter} s")
    if worker.orphan_lease <= worker.orphan_pause:
        text = f"{worker.orphan_lease} s is not above orphan_pause {worker.orphan_pause} s"
        yield Problem("policy.worker.orphan_lease", text)


def _address(path: str, text: str) -> Generator[Problem, None, tuple[str, int] | None]:
    """Problems of a host:port. Its value, for `yield from`, is (host, port), or None where it is none."""
    try:
        return split_address(text, path)
    except ConfigError as error:
        yield Problem(path, str(error).removeprefix(f"{path}: "))
        return None


def _routed(mesh: MeshConfig, node: NodeConfig) -> bool:
    return any(route.target == node.name for route in mesh.routes)


def _not_one_of(name: str, known: Sequence[str], what: str) -> str:
    listed = ", ".join(dict.fromkeys(known)) or "none is named"
    return f"{name!r} is not {what} of this file ({listed}){did_you_mean(name, known)}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
