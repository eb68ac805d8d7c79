"""`python -m services --config mesh.toml`: every node of the file on this machine, for a first look.

`--check mesh.toml [--node NAME]` says all that is wrong with a file (and with this machine, for a node), and
`--schema` prints the file's JSON Schema for editors. Neither starts anything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import signal
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shared.errors import ConfigError, MeshError
from shared.runtime.check import check
from shared.runtime.children import Children
from shared.runtime.mesh_file import load_mesh
from shared.runtime.mesh_schema import schema_text
from shared.runtime.service import run_loop
from shared.runtime.settings import MeshConfig, NodeConfig, split_address

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after Ctrl-C or SIGTERM, 1 where a node did not start or ended of itself, 2 where the
    file is wrong."""
    options = _parser().parse_args(arguments)
    if options.schema:
        print(schema_text(), end="")
        return 0
    if options.check:
        return check(options.check, options.node, sys.stdout)
    try:
        mesh = load_mesh(options.config)
        logs = Path(options.logs or tempfile.mkdtemp(prefix="pdd-"))
        return run_loop(_serve(mesh, Path(options.config), logs))
    except MeshError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, ConfigError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m services",
        description="Run every node of a mesh file on this machine, or check the file.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="mesh.toml", help="run all nodes of this file")
    what.add_argument("--check", metavar="mesh.toml", help="say all that is wrong with this file")
    what.add_argument("--schema", action="store_true", help="print the JSON Schema of mesh files")
    parser.add_argument("--node", default="", help="with --check: also whether this node could run here")
    parser.add_argument("--logs", default="", help="directory of the nodes' logs (default: a temporary one)")
    return parser


async def _serve(mesh: MeshConfig, config: Path, logs: Path) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Children(mesh, config, logs) as children:
        await children.start_all()
        print(f"starting {len(mesh.nodes)} nodes; logs in {logs}", flush=True)
        stopped = asyncio.ensure_future(stop.wait())
        ready = children.wait_ready(is_ready, timeout=180.0, progress=_Waiting())
        if await _unless(stopped, ready):
            _say_how(mesh)
            ended = await _unless(stopped, children.first_to_end())
            if ended:
                sys.stderr.write(f"{ended[0]} ended:\n{children.tail(ended[0])}\n")
                return 1
        print("\nstopping", flush=True)
    return 0


async def _unless(stopped: asyncio.Future[Any], work: Coroutine[Any, Any, T]) -> tuple[T] | None:
    """What the work returns; None, and the work is given up, where the signal to stop comes first."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return (task.result(),)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


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


class _Waiting:
    """Says for whom the start still waits: in place on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._said: list[str] | None = None

    def __call__(self, names: list[str]) -> None:
        if names == self._said:
            return
        self._said = names
        text = f"waiting for {', '.join(names)}" if names else "ready"
        print(f"\r\x1b[K{text}" if sys.stdout.isatty() else f"{text}\n", end="", flush=True)


def _say_how(mesh: MeshConfig) -> None:
    router = next(node for node in mesh.nodes if node.role == "router")
    model = mesh.served[0].served
    base = f"http://{router.http}/v1"
    print(
        f"""

The mesh serves {" and ".join(one.served for one in mesh.served)} at {base}

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
