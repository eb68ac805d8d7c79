"""Nodes as child processes: started by role, waited for, shown when they die, ended whatever they do."""

import asyncio
import signal
from pathlib import Path

import pytest

from shared.errors import ConfigError, StartFailed
from shared.runtime.children import Children
from shared.runtime.settings import DatacenterConfig, MeshConfig, ModelConfig, NodeConfig

# Small services that find their place in the command line, and say "ready" by a file in their directory.
HEAD = """
import pathlib, signal, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
here = pathlib.Path(options["--config"]).parent
print("hello from", options["--node"], flush=True)
"""
READY = '(here / options["--node"]).touch()\n'
SERVES = HEAD + READY + "signal.pause()\n"
STUBBORN = HEAD + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "signal.pause()\n"
DIES = HEAD + 'sys.exit("no such model")\n'
SILENT = HEAD + "signal.pause()\n"


def node(name: str, role: str) -> NodeConfig:
    return NodeConfig(name=name, role=role, datacenter="a", listen="127.0.0.1:0")  # type: ignore[arg-type]


class Stage:
    """A package `services` of small scripts, and the children that run them."""

    def __init__(self, directory: Path, **scripts: str) -> None:
        self.directory = directory
        package = directory / "python" / "services"
        for role, script in scripts.items():
            (package / role).mkdir(parents=True)
            (package / role / "__main__.py").write_text(script)
            (package / role / "__init__.py").touch()
        (package / "__init__.py").touch()
        mesh = MeshConfig(
            model=ModelConfig(path="none"),
            datacenters=(DatacenterConfig(name="a"),),
            nodes=tuple(node(f"{role}-0", role) for role in scripts),
        )
        environment = {"PYTHONPATH": str(directory / "python"), "PYTHONSAFEPATH": "1"}
        self.children = Children(mesh, directory / "mesh.toml", directory / "logs", environment)

    def is_ready(self, node: NodeConfig) -> bool:
        return (self.directory / node.name).exists()


async def test_all_nodes_run_until_they_are_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path, router=SERVES, prefill=SERVES)
    waited: list[list[str]] = []
    async with stage.children as children:
        await children.start_all()
        await children.wait_ready(stage.is_ready, timeout=30, progress=waited.append)
        router, prefill = children["router-0"], children["prefill-0"]
        codes = [router.returncode, prefill.returncode]
        assert codes == [None, None]
        assert waited[-1] == []
        assert children.tail("router-0") == "hello from router-0"
    codes = [router.returncode, prefill.returncode]
    assert codes == [-signal.SIGTERM, -signal.SIGTERM]


async def test_one_that_dies_while_it_starts_is_shown_with_its_last_words(tmp_path: Path) -> None:
    stage = Stage(tmp_path, router=SERVES, relay=DIES)
    async with stage.children as children:
        await children.start_all()
        with pytest.raises(
            StartFailed, match=r"relay-0 ended while it started:\nhello from relay-0\nno such model"
        ):
            await children.wait_ready(lambda _node: False, timeout=30)


async def test_one_that_is_never_ready_is_named(tmp_path: Path) -> None:
    stage = Stage(tmp_path, router=SERVES, relay=SILENT)
    async with stage.children as children:
        await children.start_all()
        with pytest.raises(StartFailed, match=r"not ready after 0 s: .*relay-0"):
            await children.wait_ready(lambda node: node.role == "router", timeout=0.0)


async def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, router=STUBBORN, prefill=SERVES)
    async with stage.children as children:
        await children.start_all()
        await children.wait_ready(stage.is_ready, timeout=30)
        stubborn, mild = children["router-0"], children["prefill-0"]
        await children.end(grace=0.2)
    assert (stubborn.returncode, mild.returncode) == (-signal.SIGKILL, -signal.SIGTERM)


async def test_the_first_to_end_is_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, router=SERVES, prefill=SERVES)
    async with stage.children as children:
        await children.start_all()
        await children.wait_ready(stage.is_ready, timeout=30)
        first = asyncio.ensure_future(children.first_to_end())
        children["prefill-0"].kill()
        assert await first == "prefill-0"


async def test_a_node_can_be_started_again_and_its_log_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, relay=DIES)
    async with stage.children as children:
        for _ in range(2):
            process = await children.start("relay-0")
            assert await process.wait() == 1
        assert children.tail("relay-0", lines=3).count("no such model") == 2
        with pytest.raises(ConfigError, match="there is no node 'x'"):
            await children.start("x")


async def test_a_node_without_a_log_has_no_last_words(tmp_path: Path) -> None:
    assert Stage(tmp_path, relay=DIES).children.tail("relay-0") == ""
