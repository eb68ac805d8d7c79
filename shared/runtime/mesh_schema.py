"""The JSON Schema of `mesh.toml`, for editors: types, limits, defaults, and each key's documentation."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from shared.runtime.field_docs import field_docs
from shared.runtime.limits import limit_of
from shared.runtime.reading import walk_sections
from shared.runtime.settings import MeshConfig


def schema_text() -> str:
    """The schema as it is committed in deploy/mesh.schema.json."""
    return json.dumps(make_schema(), indent=2, ensure_ascii=False) + "\n"


def make_schema() -> dict[str, Any]:
    """msgspec's schema of MeshConfig with what it cannot know added."""
    schema = msgspec.json.schema(MeshConfig)
    for _, kind in walk_sections(MeshConfig):
        properties = schema["$defs"][kind.__name__]["properties"]
        texts = field_docs(kind)
        for key, entry in properties.items():
            _without_null(entry)
            if key in texts:
                entry["description"] = texts[key]
            entry |= _bounds(kind, key)
            if isinstance(entry.get("default"), dict | list):
                del entry["default"]  # the section's own keys have theirs
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mesh.toml",
    }
    schema["$defs"]["MeshConfig"]["oneOf"] = [{"required": ["model"]}, {"required": ["models"]}]
    return head | schema


def _without_null(entry: dict[str, Any]) -> None:
    """A section that may be left out: TOML has no null, so its schema is the section's."""
    kinds = [one for one in entry.get("anyOf", ()) if one != {"type": "null"}]
    if len(kinds) == 1:
        entry.clear()
        entry |= kinds[0]


def _bounds(kind: type[msgspec.Struct], key: str) -> dict[str, Any]:
    limit = limit_of(kind, key)
    if limit is None or _is_switch(kind, key):
        return {}
    bounds = {
        "minimum": limit.least,
        "maximum": limit.most,
        "exclusiveMinimum": limit.above,
        "enum": list(limit.choices) or None,
        "pattern": f"^({limit.pattern.removeprefix('(?s)')})$" if limit.pattern else None,
    }
    return {name: value for name, value in bounds.items() if value is not None}


def _is_switch(kind: type[msgspec.Struct], key: str) -> bool:
    return any(field.name == key and field.type is bool for field in msgspec.structs.fields(kind))
