"""JSON schemas as parts of a grammar: made ready, tried, and where one cannot be kept to, the keyword and its
place. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from services.router.front.depth import LEVELS, check_depth
from services.router.front.structure.form import Schema
from shared.engine.grammar import MOST_BYTES
from shared.errors import InvalidRequest

Fault = Callable[[str], str]
"""Why a grammar's text cannot be compiled; "": it can."""
_SPACE = r"[ \n\r\t]{0,40}"
"""White space between the parts of a JSON text: bounded, so that no model can stay in it."""
_PROBES = 400
_ONE = ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_SAID = frozenset(
    {"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
_SHARED = ("$defs", "$schema", "definitions")
_KEYWORDS = (
    (r'^Unimplemented keys: \["([^"]+)"', ""),
    (r"^Unknown format|^Unsupported format", "format"),
    (r"^regex parse error|^patternProperty", "pattern"),
    (r"^oneOf", "oneOf"),
    (r"^(?:Resource|Pointer|Ref)|\$ref", "$ref"),
    (r"^Invalid type", "type"),
)


def schema_text(schema: Schema, *, lenient: bool = False) -> str:
    """A schema as the grammar takes it. `lenient`: what cannot be kept to is left out."""
    options: dict[str, Any] = {"whitespace_pattern": _SPACE}
    if lenient:
        options["lenient"] = True
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return json.dumps({**_bare(schema), "x-guidance": options}, ensure_ascii=False)


def _bare(schema: Any) -> Any:
    """A schema without what tells readers about it, which grammars need not carry."""
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _SAID:
            continue
        if key in _MAPS and isinstance(value, dict):
            value = {name: _bare(one) for name, one in value.items()}
        elif key in _LISTS and isinstance(value, list):
            value = [_bare(one) for one in value]
        elif key in _ONE:
            value = _bare(value)
        made[key] = value
    return made


def moved(schema: Any, root: str) -> Any:
    """A schema as a part of another one, at `root`: its references to parts of itself go there."""
    if isinstance(schema, list):
        return [moved(one, root) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: moved(value, root) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        made["$ref"] = root + reference[1:]
    return made


def alone(text: str) -> str:
    """The grammar that is a schema's text and nothing else."""
    return f'{{"grammars": [{{"json_schema": {text}}}]}}'


def check_schema(schema: Schema, path: str, fault: Fault) -> None:
    """Refuse a schema that cannot be kept to. Raises InvalidRequest with the keyword and its place."""
    check_depth(schema, LEVELS, path)
    text = alone(schema_text(schema))
    said = fault(text)
    if not said:
        return
    where = _Search(schema, said, fault).place() if len(text) <= MOST_BYTES else []
    keyword = next((name or match[1] for match, name in _matches(said)), "")
    whole = path + "".join(where) + (f".{keyword}" if keyword else "")
    raise InvalidRequest(f"{whole}: cannot be kept to: {said}; leave it out, or say it in another way", whole)


def _matches(said: str) -> Iterator[tuple[re.Match[str], str]]:
    for pattern, name in _KEYWORDS:
        match = re.search(pattern, said)
        if match is not None:
            yield match, name


class _Search:
    """Finds the innermost part of a schema that has a fault by itself."""

    def __init__(self, schema: Schema, said: str, fault: Fault) -> None:
        self._schema = schema
        self._said = said
        self._fault = fault
        self._left = _PROBES
        root = schema if isinstance(schema, dict) else {}
        self._beside = {key: root[key] for key in _SHARED if key in root}

    def place(self) -> list[str]:
        """Steps from the schema to that part."""
        steps: list[str] = []
        at: Any = self._schema
        while isinstance(at, dict):
            inner = next((each for each in _parts(at) if self._has(each[1])), None)
            if inner is None:
                break
            steps.append(inner[0])
            at = inner[1]
        return steps

    def _has(self, part: Schema) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        whole = {**self._beside, **part} if isinstance(part, dict) else part
        return self._fault(alone(schema_text(whole))) == self._said


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """The schemas directly in a schema, each with its place; definitions last, which are no part by
    themselves."""
    for key in sorted(schema, key=lambda key: key in _SHARED):
        value = schema[key]
        if key in _ONE and isinstance(value, dict | bool):
            yield f".{key}", value
        elif key in _LISTS and isinstance(value, list):
            for at, one in enumerate(value):
                if isinstance(one, dict | bool):
                    yield f".{key}[{at}]", one
        elif key in _MAPS and isinstance(value, dict):
            for name, one in value.items():
                if isinstance(one, dict | bool):
                    yield f".{key}.{name}", one
