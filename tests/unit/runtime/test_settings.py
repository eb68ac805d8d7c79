"""A mesh's answers: nodes, lines, and the address under which one node reaches another."""

import pytest

from shared.errors import ConfigError
from shared.policy.config import RouterPolicy
from shared.runtime.settings import (
    DatacenterConfig,
    HttpConfig,
    LineConfig,
    MeshConfig,
    ModelConfig,
    NodeConfig,
    RouteConfig,
    split_address,
)

ROUTER = NodeConfig(name="r", role="router", datacenter="a", listen="127.0.0.1:1", http="127.0.0.1:2")
PREFILL = NodeConfig(name="p", role="prefill", datacenter="a", listen="0.0.0.0:3", address="10.0.0.1:3")
MAIN = NodeConfig(name="m", role="main_decode", datacenter="b", listen="[::1]:4")
MESH = MeshConfig(
    model=ModelConfig(path="x"),
    datacenters=(DatacenterConfig(name="a"), DatacenterConfig(name="b"), DatacenterConfig(name="c")),
    nodes=(ROUTER, PREFILL, MAIN),
    lines=(LineConfig(name="a-b", between=("a", "b")),),
    routes=(
        RouteConfig(source="p", target="m", address="10.9.9.9:9"),
        RouteConfig(source="b", target="r", address="10.8.8.8:8"),
    ),
)


def test_nodes_by_name() -> None:
    assert MESH.node("p") is PREFILL
    with pytest.raises(ConfigError, match="there is no node 'x'; this file names r, p, m"):
        MESH.node("x")


def test_the_line_between_two_datacenters_has_no_direction() -> None:
    assert MESH.line_between("a", "b") is MESH.line_between("b", "a") is MESH.lines[0]
    assert MESH.line_between("a", "c") is None
    assert MESH.line_between("a", "a") is None


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (ROUTER, PREFILL, ("10.0.0.1", 3)),  # the address, not what it listens on
        (PREFILL, ROUTER, ("127.0.0.1", 1)),
        (ROUTER, MAIN, ("::1", 4)),
        (PREFILL, MAIN, ("10.9.9.9", 9)),  # a route of this node
        (MAIN, ROUTER, ("10.8.8.8", 8)),  # a route of its datacenter
    ],
)
def test_addresses_and_routes(source: NodeConfig, target: NodeConfig, expected: tuple[str, int]) -> None:
    assert MESH.address_of(target, source) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.example:80", ("a.example", 80)), ("[::]:0", ("::", 0)), ("127.0.0.1:65535", ("127.0.0.1", 65535))],
)
def test_addresses_come_apart(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text, "x") == expected


@pytest.mark.parametrize(
    "text", ["", "host", ":80", "host:", "host:port", "host:65536", "host:-1", "host:1.5"]
)
def test_what_is_no_address_is_refused_by_its_path(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^nodes\[1\]\.listen: "):
        split_address(text, "nodes[1].listen")


def test_a_stream_begins_by_a_comment_only_after_the_longest_wait_for_room() -> None:
    """Else a request that waits in vain is told 200, and then an error in the stream instead of a 503."""
    assert HttpConfig().keep_alive > RouterPolicy().queue_wait
