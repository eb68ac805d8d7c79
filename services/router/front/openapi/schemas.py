"""JSON Schema of bodies' types, each Struct once, under its name. Knows no endpoint.

msgspec makes schemas itself, but none of `Raw` fields, which hold what is only looked at later, nor of unions
of Structs, which it can write and not read. What Raw fields may be is told here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, UNSET, Meta, Raw, Struct, UnsetType, structs

Schema = dict[str, Any]
Hole = Any
"""What a Raw may be: a Schema, a type, or several Structs."""

Holes = Mapping[tuple[type[Struct], str], Hole]
"""What a Raw field, or each item of a list of Raw, may be: by the Struct that has it and its name."""

Words = Mapping[tuple[type[Struct], str], Sequence[str | None]]
"""The words that a field of text may be, in the same way."""

_PLAIN: Mapping[Any, Schema] = {
    Any: {},
    object: {},
    None: {"type": "null"},
    NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
}
_NUMBERS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_LENGTHS = {
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
_INTEGER_KEYS = {"pattern": "^-?[0-9]+$"}


class Schemas:
    """Collects the components of one document."""

    def __init__(self, holes: Holes, words: Words) -> None:
        self.components: dict[str, Schema] = {}
        self._holes = holes
        self._words = words
        self._names: dict[type[Struct], str] = {}
        self._makers: Mapping[Any, Callable[[Any, Hole], Schema]] = {
            Annotated: self._annotated,
            Union: self._union,
            UnionType: self._union,
            Literal: lambda kind, _: {"enum": list(get_args(kind))},
            list: self._list,
            Sequence: self._list,
            tuple: lambda kind, _: self._tuple(get_args(kind)),
            dict: lambda kind, _: self._mapping(*get_args(kind)),
            Mapping: lambda kind, _: self._mapping(*get_args(kind)),
        }

    def of(self, kind: Any, hole: Hole = None) -> Schema:
        """The schema of a type; Structs go to the components. `hole`: what Raw in it may be."""
        if kind is Raw:
            return self._told(hole)
        if isinstance(kind, type):
            if issubclass(kind, Struct):
                return self._struct(kind)
            if issubclass(kind, enum.Enum):
                return {"enum": [one.value for one in kind]}
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        make = self._makers.get(get_origin(kind))
        if make is None:
            raise TypeError(f"{kind} has no schema; say here what it is")
        return make(kind, hole)

    def _told(self, hole: Hole) -> Schema:
        if hole is None:
            raise TypeError("a Raw field of which nobody has said what it may be")
        if isinstance(hole, Mapping):
            return dict(hole)
        if isinstance(hole, tuple):
            return {"anyOf": [self.of(one) for one in hole]}
        return self.of(hole)

    def _annotated(self, kind: Any, hole: Hole) -> Schema:
        inner, *notes = get_args(kind)
        schema = self.of(inner, hole)
        bounds = {**_NUMBERS, **_LENGTHS.get(str(schema.get("type")), {})}
        for note in notes:
            if isinstance(note, Meta):
                found = {said: getattr(note, own, None) for own, said in bounds.items()}
                schema |= {said: value for said, value in found.items() if value is not None}
        return schema

    def _union(self, kind: Any, hole: Hole) -> Schema:
        kinds = [one for one in get_args(kind) if one is not UnsetType]
        return (
            self.of(kinds[0], hole) if len(kinds) == 1 else {"anyOf": [self.of(one, hole) for one in kinds]}
        )

    def _list(self, kind: Any, hole: Hole) -> Schema:
        return {"type": "array", "items": self.of(get_args(kind)[0], hole)}

    def _tuple(self, kinds: Sequence[Any]) -> Schema:
        if kinds[-1] is Ellipsis:
            return {"type": "array", "items": self.of(kinds[0])}
        items = [self.of(one) for one in kinds]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _mapping(self, key: Any, value: Any) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": self.of(value)}
        return schema | ({"propertyNames": _INTEGER_KEYS} if key is int else {})

    def _struct(self, kind: type[Struct]) -> Schema:
        name = self._names.get(kind)
        if name is None:
            name = self._names[kind] = _name(kind, taken=self.components)
            self.components[name] = {}  # it may hold itself
            self.components[name] |= self._object(kind)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, kind: type[Struct]) -> Schema:
        fields = structs.fields(kind)
        made: Schema = {"type": "object"}
        if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):
            made["description"] = " ".join(kind.__doc__.split())
        made["properties"] = {field.encode_name: self._property(kind, field) for field in fields}
        needed = [field.encode_name for field in fields if field.required]
        if needed:
            made["required"] = needed
        if kind.__struct_config__.forbid_unknown_fields:
            made["additionalProperties"] = False
        return made

    def _property(self, owner: type[Struct], field: structs.FieldInfo) -> Schema:
        places = [(one, field.name) for one in owner.__mro__]
        schema = self.of(field.type, next((self._holes[one] for one in places if one in self._holes), None))
        words = next((self._words[one] for one in places if one in self._words), None)
        if words is not None:
            schema["enum"] = list(words)
        default = field.default
        if default in (NODEFAULT, UNSET, None) or isinstance(default, Raw | Struct):
            return schema
        return {**schema, "default": default}


def _name(kind: type[Struct], *, taken: Mapping[str, Schema]) -> str:
    """The Struct's name; with its package before it where another has that name already."""
    if kind.__name__ not in taken:
        return kind.__name__
    package = kind.__module__.split(".")[-2].capitalize()
    return f"{package}{kind.__name__}"
