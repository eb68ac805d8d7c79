"""Turns a decoded TOML tree into a Struct and notes every unknown key, wrong type and impossible value on the
way, each by its key's path.

Where a value cannot be used its default stands in, so that the checks that follow still see the rest.
Knows the shape of Structs, not what the mesh file's sections mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

import msgspec

from shared.runtime.limits import limit_problem

S = TypeVar("S", bound=msgspec.Struct)

_WORDS: Mapping[object, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple[str, str]: "a list of two strings",
}
_SHOWN = 60


class Problem(NamedTuple):
    """One thing that is wrong: the key's path and what to do about it."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Reader:
    """Reads one tree; `problems` are in the order in which they were met."""

    def __init__(self, root: type[msgspec.Struct]) -> None:
        """`root` is the Struct of the whole file: where a key is known elsewhere in it, that is said."""
        self.problems: list[Problem] = []
        self._places = _key_places(root)

    def table(self, kind: type[S], raw: object, path: str = "") -> S:
        """`raw` as a `kind`."""
        if not isinstance(raw, dict):
            self._note(path, f"{_show(raw)} is not a table; write {headline(path)}")
            return cast(S, _stand_in(kind))
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        for key in raw:
            if key not in fields:
                self._note(_join(path, key), self._unknown(key, list(fields)))
        values: dict[str, Any] = {}
        for key, field in fields.items():
            place = _join(path, key)
            value = self._value(field.type, raw[key], place) if key in raw else None
            if key not in raw and field.required:
                self._note(place, "is missing")
            if value is not None:
                values[key] = value
                self._note(place, limit_problem(kind, key, value))
            elif field.required:
                values[key] = _stand_in(field.type)
        return kind(**values)

    def _value(self, kind: Any, raw: object, path: str) -> Any:
        """A value as its field's type; None, and noted, where it is none (TOML itself has no null)."""
        item = item_of(kind)
        if item is not None:
            return self._array(item, raw, path)
        section = struct_of(kind)
        if section is not None:
            return self.table(section, raw, path)
        if get_origin(kind) is Literal:
            choices = get_args(kind)
            if isinstance(raw, str) and raw in choices:
                return raw
            known = ", ".join(map(str, choices))
            self._note(path, f"{_show(raw)} is not one of {known}{did_you_mean(raw, choices)}")
            return None
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError:
            self._note(path, f"{_show(raw)} is not {_WORDS.get(kind, kind)}")
            return None

    def _array(self, item: type[msgspec.Struct], raw: object, path: str) -> Any:
        if not isinstance(raw, list):
            self._note(path, f"{_show(raw)} is not an array of tables; write [[{path}]]")
            return None
        return tuple(self.table(item, each, f"{path}[{index}]") for index, each in enumerate(raw))

    def _unknown(self, key: str, here: list[str]) -> str:
        if key in self._places:
            return f"unknown key here; it belongs to {self._places[key]}"
        return f"unknown key{did_you_mean(key, here) or '; known here: ' + ', '.join(here)}"

    def _note(self, path: str, text: str) -> None:
        if text:
            self.problems.append(Problem(path, text))


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known word is close, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1) if isinstance(word, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def walk_sections(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """(path, Struct) of a file's sections, in order, the file itself first; arrays of tables as `path[]`."""
    yield path, kind
    for field in msgspec.structs.fields(kind):
        item = item_of(field.type)
        if item is not None:
            yield from walk_sections(item, f"{_join(path, field.name)}[]")
        elif (section := struct_of(field.type)) is not None:
            yield from walk_sections(section, _join(path, field.name))


def headline(path: str) -> str:
    """How a section begins in TOML."""
    name = path.partition("[")[0]
    return f"[[{name}]]" if path.endswith("]") else f"[{name}]"


def is_struct(kind: Any) -> bool:
    """Whether a field is a table."""
    return struct_of(kind) is not None


def struct_of(kind: Any) -> Any:
    """X where a field is a table X, or one that may be left out (`X | None`); else None."""
    if get_origin(kind) is UnionType:
        kind = next((one for one in get_args(kind) if one is not type(None)), None)
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def item_of(kind: Any) -> Any:
    """X where a field is `tuple[X, ...]` of Structs, an array of tables; else None."""
    arguments = get_args(kind)
    if get_origin(kind) is tuple and arguments[1:] == (Ellipsis,) and is_struct(arguments[0]):
        return arguments[0]
    return None


def _key_places(root: type[msgspec.Struct]) -> dict[str, str]:
    """Where keys and sections are: `max_running` -> [policy.worker], `router` -> [policy.router]. Those that
    are in several places are left out."""
    places: dict[str, set[str]] = {}
    seen: set[type[msgspec.Struct]] = set()
    for path, section in walk_sections(root):
        if section in seen:
            continue  # another place for the same keys
        seen.add(section)
        if "." in path:
            places.setdefault(path.rpartition(".")[2], set()).add(headline(path))
        for field in msgspec.structs.fields(section) if path else ():
            if not is_struct(field.type):
                places.setdefault(field.name, set()).add(headline(path))
    return {key: next(iter(found)) for key, found in places.items() if len(found) == 1}


def _stand_in(kind: Any) -> Any:
    """A value for a required key that is missing or unusable: empty."""
    section = struct_of(kind)
    if section is not None:
        required = [field for field in msgspec.structs.fields(section) if field.required]
        return section(**{field.name: _stand_in(field.type) for field in required})
    if get_origin(kind) is tuple:
        arguments = get_args(kind)
        return () if arguments[-1] is Ellipsis else tuple(_stand_in(each) for each in arguments)
    return "" if get_origin(kind) is Literal else kind()


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _show(raw: object) -> str:
    """A value as a person wrote it, cut to a readable length."""
    if isinstance(raw, dict):
        return "a table"
    text = str(raw).lower() if isinstance(raw, bool) else repr(raw)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
