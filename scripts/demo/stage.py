"""Builds the demo's two datacenters on this machine: mesh file, emulated line, service processes."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.wan.proxy import WanProxy
from services.__main__ import is_ready
from shared.runtime.children import Children
from shared.runtime.mesh_file import load_mesh
from shared.runtime.settings import NodeConfig

MODEL_NAME = "smollm2-135m-instruct"
WORKERS = (("prefill-0", "prefill", "a"), ("relay-0", "relay", "a"), ("main-0", "main_decode", "b"))


@dataclass(frozen=True, slots=True)
class Stage:
    """A mesh that serves: where its doors are and what has crossed its line."""

    wan: WanProxy
    base_url: str
    admin_key: str
    status: dict[str, str]  # worker -> host:port of its /metrics
    rate_mbit: float


@contextlib.asynccontextmanager
async def open_stage(
    directory: Path, model: Path, *, rate_mbit: float, rtt_ms: float, progress: Callable[[list[str]], None]
) -> AsyncIterator[Stage]:
    """Four processes and the line between them, ready; all ended on leaving."""
    ports = _free_ports(2 * (len(WORKERS) + 1))
    listen = {name: f"127.0.0.1:{ports.pop()}" for name in ("router-0", *(name for name, _, _ in WORKERS))}
    http = {name: f"127.0.0.1:{ports.pop()}" for name in listen}
    async with WanProxy(rate_mbit, rtt_ms) as wan:
        routes = {
            ("a", "main-0"): await _route(wan, listen["main-0"], flip=False),
            ("b", "router-0"): await _route(wan, listen["router-0"], flip=True),
        }
        admin_key = secrets.token_hex(16)
        (directory / "admin.key").write_text(admin_key, encoding="ascii")
        config = directory / "mesh.toml"
        config.write_text(
            mesh_file(directory, model, listen, http, routes, rate_mbit, rtt_ms), encoding="utf-8"
        )
        async with Children(load_mesh(config), config, directory / "logs") as children:
            await children.start_all()
            await children.wait_ready(_serves, timeout=240.0, progress=progress)
            status = {name: http[name] for name, _, _ in WORKERS}
            yield Stage(wan, f"http://{http['router-0']}", admin_key, status, rate_mbit)


def _serves(node: NodeConfig) -> bool:
    """Whether a worker is ready; the router once every pipeline is possible."""
    if node.role != "router":
        return is_ready(node)
    try:
        with urllib.request.urlopen(f"http://{node.http}/ready", timeout=2.0) as answer:
            pools = json.load(answer)["pools"]
    except (OSError, ValueError):
        return False
    return bool(pools) and all(road["possible"] for road in pools[0]["pipelines"].values())


async def _route(wan: WanProxy, address: str, *, flip: bool) -> str:
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{await wan.route(host, int(port), flip=flip)}"


def mesh_file(
    directory: Path,
    model: Path,
    listen: dict[str, str],
    http: dict[str, str],
    routes: dict[tuple[str, str], str],
    rate_mbit: float,
    rtt_ms: float,
) -> str:
    """mesh.toml of the demo; addresses by node, routes by (datacenter, node). A TOML basic string is a JSON
    string.
    """
    text = [
        "[model]",
        f"path = {json.dumps(str(model))}",
        f'name = "{MODEL_NAME}"',
        'dtype = "float32"',
        "[http]",
        f"admin_key_file = {json.dumps(str(directory / 'admin.key'))}",
        "[policy.router]",
        "md_local_tokens = 64",
        "md_local_busy = 1.0",  # each road is shown, also where main decode alone would be sooner here
        "max_line_wait = 600.0",
        "[policy.worker]",
        "relay_max_tokens = 4096",
        "[[datacenters]]",
        'name = "a"',
        "[[datacenters]]",
        'name = "b"',
        "[[lines]]",
        'name = "a-b"',
        'between = ["a", "b"]',
        f"rate_mbit = {rate_mbit}",
        f"rtt_ms = {rtt_ms}",
        'compress = "off"',  # so that bytes on the line can be held against the blocks that were missing
    ]
    nodes = (("router-0", "router", "a"), *WORKERS)
    for name, role, datacenter in nodes:
        text += [
            "[[nodes]]",
            f'name = "{name}"',
            f'role = "{role}"',
            f'datacenter = "{datacenter}"',
            f'listen = "{listen[name]}"',
            f'http = "{http[name]}"',
            "pool_blocks = 256",
            "threads = 1",
        ]
    for (source, target), address in routes.items():
        text += ["[[routes]]", f'source = "{source}"', f'target = "{target}"', f'address = "{address}"']
    return "\n".join(text) + "\n"


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
