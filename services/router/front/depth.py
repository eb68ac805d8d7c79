"""How deep a JSON value nests: what clients send reaches a template, which must not run out of stack.
Pure."""

from __future__ import annotations

from shared.errors import InvalidRequest

LEVELS = 64
"""Levels of tools' schemas and of calls' arguments."""


def deeper(value: object, levels: int) -> bool:
    """Whether a JSON value nests deeper than so many levels."""
    layer: list[object] = [value]
    for _ in range(levels):
        inner: list[object] = []
        for one in layer:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        if not inner:
            return False
        layer = inner
    return any(isinstance(one, dict | list) for one in layer)


def check_depth(value: object, levels: int, path: str) -> None:
    """Refuse a value that nests deeper. `path`: its place in the body."""
    if deeper(value, levels):
        raise InvalidRequest(f"{path}: nests deeper than {levels} levels; flatten it", path)
