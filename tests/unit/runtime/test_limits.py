"""Every key of the mesh file has the limit its meaning asks for, and its default keeps it."""

import msgspec
import pytest

from shared.policy.config import LinePolicy, LinkPolicy, RouterPolicy, WorkerPolicy
from shared.runtime import limits
from shared.runtime.limits import Limit, limit_of, limit_problem
from shared.runtime.reading import walk_sections
from shared.runtime.settings import HttpConfig, LineConfig, MeshConfig, ModelConfig, NodeConfig

FIELDS = [(kind, field) for _, kind in walk_sections(MeshConfig) for field in msgspec.structs.fields(kind)]
NUMBERS = [(kind, field) for kind, field in FIELDS if field.type in (int, float)]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda one: getattr(one, "name", one))
def test_defaults_are_allowed(kind: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> None:
    if field.default is not msgspec.NODEFAULT:
        assert limit_problem(kind, field.name, field.default) == ""


@pytest.mark.parametrize(("kind", "field"), NUMBERS, ids=lambda one: getattr(one, "name", one))
def test_no_number_may_be_negative_or_endless(
    kind: type[msgspec.Struct], field: msgspec.structs.FieldInfo
) -> None:
    assert limit_problem(kind, field.name, -1)
    assert limit_problem(kind, field.name, -0.5)
    assert limit_problem(kind, field.name, float("inf"))
    assert limit_problem(kind, field.name, float("nan"))


def test_the_tables_name_only_keys_that_exist() -> None:
    known = {(kind, field.name) for kind, field in FIELDS}
    named = {(kind, key) for kind, keys in limits._LIMITS.items() for key in keys}
    named |= {(kind, key) for kind, keys in limits._MAY_BE_ZERO.items() for key in keys}
    assert named <= known


@pytest.mark.parametrize(
    ("kind", "key", "good", "bad"),
    [
        (ModelConfig, "block_tokens", 64, 31),
        (ModelConfig, "path", "/models/x", ""),
        (ModelConfig, "max_context", 0, -1),
        (NodeConfig, "name", "prefill-0", "a b"),
        (NodeConfig, "name", "a.b_c", "../up"),
        (NodeConfig, "name", "x" * 63, "x" * 64),
        (NodeConfig, "device", "cuda:1", "gpu"),
        (NodeConfig, "device", "cpu", "cuda:x"),
        (NodeConfig, "pool_blocks", 2, 1),
        (NodeConfig, "slowdown", 0.5, 0),
        (LineConfig, "dscp", 63, 64),
        (LineConfig, "congestion", "bbr", "b b r"),
        (LineConfig, "bulk_connections", 64, 65),
        (HttpConfig, "max_choices", 1, 0),
        (LinkPolicy, "ping_every", 0.1, 0),
        (LinkPolicy, "bulk_connections", 1, 0),
        (LinePolicy, "oldest_share", 1, 1.01),
        (WorkerPolicy, "send_pin_fraction", 1, 0),
        (WorkerPolicy, "max_queued", 0, -1),
        (RouterPolicy, "rewarm_share", 0, 1.5),
        (RouterPolicy, "max_requests", 1, 0),
    ],
)
def test_edges(kind: type[msgspec.Struct], key: str, good: object, bad: object) -> None:
    assert limit_problem(kind, key, good) == ""
    assert "is not allowed; it must be " in limit_problem(kind, key, bad)


def test_switches_have_no_limit() -> None:
    assert limit_problem(RouterPolicy, "relay", False) == ""


def test_limits_in_words() -> None:
    assert Limit(least=0, most=63).words() == "0 to 63"
    assert Limit(above=0, most=1).words() == "above 0, at most 1"
    assert Limit(choices=(8, 16)).words() == "one of 8, 16"
    assert Limit(least=2).words() == "at least 2"
    limit = limit_of(NodeConfig, "device")
    assert limit is not None
    assert limit.words() == "cpu, cuda or cuda:INDEX"
