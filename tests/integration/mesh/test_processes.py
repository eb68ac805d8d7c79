"""The four services as processes, where neither torch nor triton nor numpy can be imported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.__main__ import is_ready
from shared.runtime.children import Children
from shared.runtime.mesh_file import load_mesh
from tests.support.live_client import Client
from tests.support.live_judge import synthetic_answer
from tests.support.live_models import SyntheticModel
from tests.support.live_shape import reserved

ROOT = Path(__file__).resolve().parents[3]
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "numpy", "safetensors", "gguf"):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Blocked())
"""
NODES = {"router-0": "router", "prefill-0": "prefill", "relay-0": "relay", "main-0": "main_decode"}
IMPORT_ALL = """
import importlib, pkgutil, sys
import services.router
for module in pkgutil.walk_packages(services.router.__path__, "services.router."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert not {"torch", "triton", "numpy"} & set(sys.modules)
try:
    import torch
except ImportError:
    print("blocked")
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """In which the big libraries cannot be imported."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(BLOCKED)
    return {"PYTHONPATH": os.pathsep.join((str(hook), str(ROOT)))}


def mesh_file(directory: Path, model: Path, ports: dict[str, int]) -> Path:
    """The mesh file of four nodes; every one of them has a status page."""
    lines = [
        f'[model]\npath = "{model}"\nname = "synthetic"\nengine = "synthetic"\nblock_tokens = 16',
        "[synthetic]\nblock_bytes = 4096\nstep_ms = 4.0",
        '[[datacenters]]\nname = "a"\n[[datacenters]]\nname = "b"',
        '[[lines]]\nname = "wan"\nbetween = ["a", "b"]\nrate_mbit = 2.0\nrtt_ms = 2.0',
        "[policy.router]\nmd_local_tokens = 0\nrelay_margin = 0.0\nsingular = false",
    ]
    for name, role in NODES.items():
        site = "b" if role == "main_decode" else "a"
        lines.append(
            f'[[nodes]]\nname = "{name}"\nrole = "{role}"\ndatacenter = "{site}"\n'
            f'listen = "127.0.0.1:{ports[name]}"\nhttp = "127.0.0.1:{ports[name + ".http"]}"'
        )
    file = directory / "mesh.toml"
    file.write_text("\n".join(lines))
    return file


def test_every_module_of_the_router_imports_without_the_big_libraries(environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("blocked\n", "", 0)


async def until_possible(client: Client, road: str) -> None:
    """The router is ready as soon as any road is; the relay's sessions may come a moment later."""
    async with asyncio.timeout(20):
        while True:
            pools = (await client.http.get("/ready")).json()["pools"]
            if any(pool["pipelines"][road]["possible"] for pool in pools):
                return
            await asyncio.sleep(0.02)


async def test_four_processes_serve_drain_and_exit_with_0(
    synthetic: SyntheticModel, environment: dict[str, str], tmp_path: Path
) -> None:
    """A stream whose prefill, then relay, is told to stop goes on; then the rest is told."""
    prompt = [*range(3, 243)]
    with contextlib.ExitStack() as kept:
        ports = {name + kind: kept.enter_context(reserved()) for name in NODES for kind in ("", ".http")}
        file = mesh_file(tmp_path, synthetic.directory, ports)
        mesh = load_mesh(file)
        client = Client(f"http://127.0.0.1:{ports['router-0.http']}")
        async with Children(mesh, file, tmp_path / "logs", environment) as children:
            await children.start_all()
            await children.wait_ready(is_ready, timeout=50)
            await until_possible(client, "P-RLD-MD")
            first = await client.complete(prompt, 40, ignore_eos=True)
            assert first.ids == synthetic_answer(prompt, 40, synthetic.vocab)
            assert first.pipeline == "P-RLD-MD"
            codes = {}
            async with client.stream([9, *prompt], 250, ignore_eos=True) as stream:
                for name, ids in (("prefill-0", 30), ("relay-0", 60)):
                    await stream.ids(ids)
                    children[name].send_signal(signal.SIGTERM)
                    codes[name] = await asyncio.wait_for(children[name].wait(), 20)
                answer = await stream.rest()
            assert answer.ids == synthetic_answer([9, *prompt], 250, synthetic.vocab)
            for name in ("router-0", "main-0"):
                children[name].send_signal(signal.SIGTERM)
                codes[name] = await asyncio.wait_for(children[name].wait(), 20)
            assert codes == dict.fromkeys(NODES, 0), [children.tail(name) for name in NODES]
        await client.close()
