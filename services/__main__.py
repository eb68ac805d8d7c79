"""`python -m services --config mesh.toml`: every node of the file on this machine, for a first look."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import signal
import sys
import tempfile
from pathlib import Path

from shared.errors import MeshError
from shared.runtime.children import Children
from shared.runtime.mesh_file import load_mesh
from shared.runtime.service import run_loop
from shared.runtime.settings import MeshConfig, NodeConfig, split_address


def main() -> int:
    """Start all, say how to use it, stay until Ctrl-C or until one dies."""
    parser = argparse.ArgumentParser(prog="python -m services", description=__doc__)
    parser.add_argument("--config", required=True, metavar="mesh.toml", help="the mesh file")
    parser.add_argument("--logs", default="", help="directory of the nodes' logs (default: a temporary one)")
    options = parser.parse_args()
    try:
        mesh = load_mesh(options.config)
        logs = Path(options.logs or tempfile.mkdtemp(prefix="pdd-"))
        return run_loop(_serve(mesh, Path(options.config), logs))
    except MeshError as error:
        sys.stderr.write(f"{error}\n")
        return 1


async def _serve(mesh: MeshConfig, config: Path, logs: Path) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Children(mesh, config, logs) as children:
        await children.start_all()
        print(f"starting {len(mesh.nodes)} nodes; logs in {logs}", flush=True)
        await children.wait_ready(is_ready, timeout=180.0, progress=_say_waiting)
        _say_how(mesh)
        ended = asyncio.ensure_future(children.first_to_end())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not stop.is_set():
            sys.stderr.write(f"{ended.result()} ended:\n{children.tail(ended.result())}\n")
            return 1
        ended.cancel()
        print("\nstopping", flush=True)
    return 0


def is_ready(node: NodeConfig) -> bool:
    """Whether a node's /ready answers 200; a node without http counts as ready."""
    if not node.http:
        return True
    host, port = split_address(node.http, f"nodes.{node.name}.http")
    with (
        contextlib.closing(http.client.HTTPConnection(host, port, timeout=2.0)) as connection,
        contextlib.suppress(OSError, http.client.HTTPException),
    ):
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    return False


def _say_waiting(names: list[str]) -> None:
    print(f"\r\x1b[Kwaiting for {', '.join(names)}" if names else "\r\x1b[Kready", end="", flush=True)


def _say_how(mesh: MeshConfig) -> None:
    router = next(node for node in mesh.nodes if node.role == "router")
    model = mesh.model.name or Path(mesh.model.path).name
    base = f"http://{router.http}/v1"
    print(
        f"""

The mesh serves {model} at {base}

  curl {base}/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{base}", api_key="none")
  answer = client.chat.completions.create(
      model="{model}", messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content)

Ctrl-C stops it.""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
