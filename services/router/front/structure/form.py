"""Forms of answers as clients ask for them: JSON, a schema, a regular expression, a grammar, texts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from services.router.front.openai import NULL, Ask, Kind, read
from services.router.front.unbuilt import refuse
from shared.errors import InvalidRequest, NotBuilt

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
Text = Annotated[str, Meta(min_length=1, max_length=131_072)]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=4096)]
Schema = dict[str, Any] | bool


@dataclass(frozen=True, slots=True)
class Tag:
    """A part of the text in which a schema holds: from `begin` to `end`."""

    begin: str
    schema: Schema
    end: str
    path: str
    """The schema's place in the body."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the answer must look like; one of the values is there."""

    path: str
    """The parameter's place in the body; a schema's errors are named below it."""
    schema: Schema | None = None
    regex: str | None = None
    grammar: str | None = None
    choices: tuple[str, ...] = ()
    tags: tuple[Tag, ...] = ()
    triggers: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """For the log."""
        kinds = {"schema": self.schema, "regex": self.regex, "grammar": self.grammar, "choice": self.choices}
        return next((name for name, value in kinds.items() if value not in (None, ())), "tags")


class NamedSchema(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema: Schema | None = None


class Structure(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    begin: Text
    schema: Schema
    end: str


class Format(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`response_format` of chat and completions."""

    type: str
    json_schema: NamedSchema | None = None
    structures: Annotated[list[Structure], Meta(min_length=1, max_length=256)] | None = None
    triggers: Annotated[list[Text], Meta(min_length=1, max_length=256)] | None = None
    format: Raw = NULL


class TextFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`text.format` of /v1/responses, `output_config.format` of /v1/messages."""

    type: str
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema: Schema | None = None


class Structured(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """vLLM's `structured_outputs`."""

    json: Schema | str | None = None
    json_object: bool | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    structural_tag: Raw = NULL
    disable_additional_properties: Raw = NULL
    disable_any_whitespace: Raw = NULL
    disable_fallback: Raw = NULL
    whitespace_pattern: Raw = NULL


UNSERVED: Mapping[str, tuple[Any, ...]] = {
    "structural_tag": (),
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (False,),
    "disable_fallback": (False, True),
    "whitespace_pattern": (),
}


def form_of(ask: Ask) -> Form | None:
    """The form that a chat or completions body asks for. Raises InvalidRequest, NotBuilt by place."""
    found = [
        form
        for form in (
            _of_format(ask.response_format),
            _of_structured(ask.structured_outputs),
            *_of_guided(ask),
        )
        if form is not None
    ]
    if len(found) > 1:
        first, second = found[0].path, found[1].path
        raise InvalidRequest(f"{second}: cannot go with {first}; send one of them", second)
    return found[0] if found else None


def text_form(raw: Raw, path: str) -> Form | None:
    """The form of a `format` of /v1/responses or /v1/messages that stands at `path`."""
    if not _there(raw):
        return None
    asked = read(bytes(raw), TextFormat, path)
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return Form(path, schema=dict(ANY_OBJECT))
    if asked.type != "json_schema":
        raise _no_format(asked.type, path, "text, json_object, json_schema")
    if asked.schema is None:
        raise InvalidRequest(f"{path}.schema: required, and not there", f"{path}.schema")
    return Form(f"{path}.schema", schema=asked.schema)


def _of_format(raw: Raw) -> Form | None:
    path = "response_format"
    if not _there(raw):
        return None
    if read(bytes(raw), Kind, path).type == "text":
        return None
    asked = read(bytes(raw), Format, path)
    if asked.type == "json_object":
        return Form(path, schema=dict(ANY_OBJECT))
    if asked.type == "structural_tag":
        return _of_tags(asked, path)
    if asked.type != "json_schema":
        raise _no_format(asked.type, path, "text, json_object, json_schema, structural_tag")
    if asked.json_schema is None or asked.json_schema.schema is None:
        where = f"{path}.json_schema" + (".schema" if asked.json_schema is not None else "")
        raise InvalidRequest(f"{where}: required, and not there", where)
    return Form(f"{path}.json_schema.schema", schema=asked.json_schema.schema)


def _of_tags(asked: Format, path: str) -> Form:
    if _there(asked.format):
        raise NotBuilt(
            f"{path}.format: not served here; send structures and triggers, or a grammar as "
            "structured_outputs.grammar",
            f"{path}.format",
        )
    for name in ("structures", "triggers"):
        if getattr(asked, name) is None:
            raise InvalidRequest(f"{path}.{name}: required, and not there", f"{path}.{name}")
    triggers = tuple(asked.triggers or ())
    tags: list[Tag] = []
    for at, one in enumerate(asked.structures or ()):
        where = f"{path}.structures[{at}]"
        if not any(one.begin.startswith(trigger) for trigger in triggers):
            raise InvalidRequest(
                f"{where}.begin: begins with none of the triggers; add one that it begins with",
                f"{where}.begin",
            )
        tags.append(Tag(one.begin, one.schema, one.end, f"{where}.schema"))
    return Form(path, tags=tuple(tags), triggers=triggers)


def _of_structured(raw: Raw) -> Form | None:
    path = "structured_outputs"
    if not _there(raw):
        return None
    asked = read(bytes(raw), Structured, path)
    refuse(asked, UNSERVED, f"{path}.")
    given = {
        "json": asked.json,
        "json_object": asked.json_object or None,
        "regex": asked.regex,
        "choice": asked.choice,
        "grammar": asked.grammar,
    }
    return _one_of(given, f"{path}.")


def _of_guided(ask: Ask) -> list[Form | None]:
    """vLLM's older fields."""
    given = {
        "json": _value(ask.guided_json, Schema | str, "guided_json"),
        "regex": _value(ask.guided_regex, Text, "guided_regex"),
        "choice": _value(ask.guided_choice, Choices, "guided_choice"),
        "grammar": _value(ask.guided_grammar, Text, "guided_grammar"),
    }
    return [_one_of({name: value}, "guided_") for name, value in given.items()]


def _one_of(given: Mapping[str, Any], path: str) -> Form | None:
    asked = [(name, value) for name, value in given.items() if value is not None]
    if len(asked) > 1:
        first, second = (f"{path}{name}" for name, _ in asked[:2])
        raise InvalidRequest(f"{second}: cannot go with {first}; send one of them", second)
    if not asked:
        return None
    name, value = asked[0]
    where = f"{path}{name}"
    if name == "json":
        return Form(where, schema=_schema(value, where))
    if name == "json_object":
        return Form(where, schema=dict(ANY_OBJECT))
    if name == "regex":
        return Form(where, regex=value)
    if name == "choice":
        return Form(where, choices=tuple(value))
    return Form(where, grammar=value)


def _schema(value: Schema | str, path: str) -> Schema:
    """A schema, or the JSON text of one."""
    if not isinstance(value, str):
        return value
    try:
        found: Schema = msgspec.json.decode(value, type=Schema)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"{path}: is no JSON schema: {error}; send an object", path) from error
    return found


def _value(raw: Raw, kind: Any, path: str) -> Any:
    """A field's value, of this type; None: it was left out."""
    if not _there(raw):
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        what = str(error).partition(" - at ")[0]
        raise InvalidRequest(f"{path}: {what[:1].lower()}{what[1:]}", path) from error


def _there(raw: Raw) -> bool:
    return bytes(raw).strip() != b"null"


def _no_format(kind: str, path: str, served: str) -> InvalidRequest:
    return InvalidRequest(f"{path}.type: {kind[:80]!r} is not one of {served}", f"{path}.type")
