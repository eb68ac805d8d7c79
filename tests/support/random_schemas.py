"""Random JSON schemas whose values are short, and whether a value is one of theirs: by hand, for these."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NAMES = ("a", "bc", "the", "x y", "é")


def schema(rnd: random.Random, depth: int = 2) -> dict[str, Any]:
    """One schema of any kind."""
    plain: list[Callable[[random.Random, int], dict[str, Any]]] = [_enum, _integer, _string, _flat]
    kinds = [*plain, an_object, an_object, _array, _any_of] if depth else plain
    return rnd.choice(kinds)(rnd, depth)


def _enum(rnd: random.Random, _depth: int) -> dict[str, Any]:
    return {"enum": rnd.sample([1, "one", None, True, "two", -3, "été"], rnd.randrange(1, 4))}


def _integer(rnd: random.Random, _depth: int) -> dict[str, Any]:
    least = rnd.randrange(-20, 50)
    return {"type": "integer", "minimum": least, "maximum": least + rnd.randrange(120)}


def _string(rnd: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": rnd.randrange(1, 7)}


def _flat(rnd: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": rnd.choice(["boolean", "null"])}


def _array(rnd: random.Random, depth: int) -> dict[str, Any]:
    least = rnd.randrange(2)
    items = schema(rnd, depth - 1)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + rnd.randrange(3)}


def _any_of(rnd: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(rnd, depth - 1) for _ in range(rnd.randrange(2, 4))]}


def an_object(rnd: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema of objects."""
    names = rnd.sample(NAMES, rnd.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: schema(rnd, depth - 1) for name in names},
        "required": [name for name in names if rnd.random() < 0.7],
        "additionalProperties": False,
    }


def holds(rule: dict[str, Any], value: Any) -> bool:
    """Whether a value is one of a schema's."""
    if "anyOf" in rule:
        return any(holds(one, value) for one in rule["anyOf"])
    if "enum" in rule:
        return any(type(one) is type(value) and one == value for one in rule["enum"])
    return _KINDS[rule["type"]](rule, value)


def _holds_object(rule: dict[str, Any], value: Any) -> bool:
    inner = rule["properties"]
    if not isinstance(value, dict) or not set(rule["required"]) <= set(value) <= set(inner):
        return False
    return all(holds(inner[name], one) for name, one in value.items())


def _holds_array(rule: dict[str, Any], value: Any) -> bool:
    if not isinstance(value, list) or not rule["minItems"] <= len(value) <= rule["maxItems"]:
        return False
    return all(holds(rule["items"], one) for one in value)


_KINDS: dict[str, Callable[[dict[str, Any], Any], bool]] = {
    "object": _holds_object,
    "array": _holds_array,
    "integer": lambda rule, one: type(one) is int and bool(rule["minimum"] <= one <= rule["maximum"]),
    "string": lambda rule, one: isinstance(one, str) and len(one) <= rule["maxLength"],
    "boolean": lambda _rule, one: isinstance(one, bool),
    "null": lambda _rule, one: one is None,
}
