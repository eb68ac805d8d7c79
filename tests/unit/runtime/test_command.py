"""The command line of a service: which node it is to be, and what is wrong when it cannot be one."""

from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.runtime.command import pick_node, service_main
from shared.runtime.service import Service
from shared.runtime.settings import DatacenterConfig, MeshConfig, ModelConfig, NodeConfig, RoleName


def node(name: str, role: RoleName) -> NodeConfig:
    return NodeConfig(name=name, role=role, datacenter="a", listen="127.0.0.1:0")


MESH = MeshConfig(
    model=ModelConfig(path="m"),
    datacenters=(DatacenterConfig(name="a"),),
    nodes=(node("r", "router"), node("p0", "prefill"), node("p1", "prefill")),
)


def test_a_node_is_picked_by_name_or_because_it_is_the_only_one() -> None:
    assert pick_node(MESH, "prefill", "p1").name == "p1"
    assert pick_node(MESH, "router", "").name == "r"


@pytest.mark.parametrize(
    ("role", "name", "expected"),
    [
        ("prefill", "", "--node: name one of this file's prefill nodes: p0, p1"),
        ("relay", "", "--node: name one of this file's relay nodes: none"),
        ("relay", "p0", "--node: 'p0' is a prefill; start it with python -m services.prefill"),
        ("relay", "zz", "nodes: there is no node 'zz'; this file names r, p0, p1"),
    ],
)
def test_a_node_that_cannot_be_is_refused(role: RoleName, name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pick_node(MESH, role, name)
    assert str(refused.value) == expected


def make(_mesh: MeshConfig, _node: NodeConfig) -> Service:
    raise AssertionError("nothing may be started")


def test_a_wrong_file_ends_with_2_and_says_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mesh.toml"
    file.write_text('[model]\npth = "x"\n')
    assert service_main("relay", make, ["--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"relay: {file}: ")
    assert "model.pth: unknown key; did you mean 'path'?" in said
    assert "nodes: is missing" in said


def test_a_wrong_command_line_ends_with_2() -> None:
    with pytest.raises(SystemExit) as ended:
        service_main("relay", make, [])
    assert ended.value.code == 2
