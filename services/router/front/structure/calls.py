"""Calls of tools as rules of a grammar, in each format that is read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.front.reading import bare, tagged
from services.router.front.structure.form import ANY_OBJECT, Schema
from services.router.front.structure.lark import GAP, Rules, literal, without
from services.router.front.structure.schema import Fault, alone, check_schema, moved, schema_text
from shared.errors import InvalidRequest

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any] | None
    strict: bool
    path: str
    """Its parameters' place in the body."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Which calls an answer may, or must, make."""

    format: str
    tools: Sequence[Offer]
    required: bool
    """The answer is calls and nothing else; else it may be words, with calls or without."""
    one: bool = False
    """One call at most."""
    beside: bool = False
    """Beside them the answer may be JSON of another form."""


def arguments(rules: Rules, tools: Sequence[Offer], key: str, fault: Fault) -> str:
    """Rules of one call as a JSON object; returns how to refer to it. Raises InvalidRequest by place."""
    names = []
    for at, tool in enumerate(tools):
        inner, lenient = _parameters(tool, fault)
        schema = rules.schema(schema_text(inner, lenient=lenient))
        names.append(f"call{at}")
        head = literal(f'{{"name": {literal(tool.name)}, "{key}": ')
        rules.rule(f'call{at}: {head} {schema} "}}"')
    rules.rule(f"call: {' | '.join(names)}")
    return "call"


def _parameters(tool: Offer, fault: Fault) -> tuple[Schema, bool]:
    """(the schema of a tool's arguments, whether what cannot be kept to is left out of it)."""
    given = tool.parameters if tool.parameters is not None else _NO_ARGUMENTS
    schema = {"type": "object", **given}
    if tool.strict:
        if schema["type"] != "object":
            raise InvalidRequest(f"{tool.path}.type: arguments are an object", f"{tool.path}.type")
        check_schema(schema, tool.path, fault)
        return schema, False
    usable = schema["type"] == "object" and not fault(alone(schema_text(schema, lenient=True)))
    return (schema if usable else dict(ANY_OBJECT)), True


def _as_json(rules: Rules, tools: Sequence[Offer], key: str, fault: Fault) -> str:
    """The same where other JSON may stand in its place: a call is JSON as a whole then, and the two need not
    be told apart at their first character."""
    names = []
    for at, tool in enumerate(tools):
        inner, lenient = _parameters(tool, fault)
        whole = {
            "type": "object",
            "properties": {"name": {"const": tool.name}, key: moved(inner, f"#/properties/{key}")},
            "required": ["name", key],
            "additionalProperties": False,
        }
        names.append(f"call{at}")
        rules.rule(f"call{at}: {rules.schema(schema_text(whole, lenient=lenient))}")
    rules.rule(f"call: {' | '.join(names)}")
    return "call"


def required_calls(rules: Rules, calls: Calls, fault: Fault) -> str:
    """Rules of an answer that is calls."""
    return _REQUIRED[calls.format](rules, calls, fault)


def free_calls(rules: Rules, calls: Calls, fault: Fault, *, unlike: str = "") -> str:
    """Rules of an answer of words in which calls keep to their schemas. `unlike`: what words may not begin
    with."""
    return _FREE[calls.format](rules, calls, fault, unlike)


def _hermes_body(rules: Rules, calls: Calls, fault: Fault) -> str:
    call = arguments(rules, calls.tools, "arguments", fault)
    rules.rule(f"gap: {GAP}")
    rules.rule(f"body: gap {call} gap {rules.mark(tagged.CLOSE)}")
    return "body"


def _smollm_body(rules: Rules, calls: Calls, fault: Fault) -> str:
    call = arguments(rules, calls.tools, "arguments", fault)
    rules.rule(f"gap: {GAP}")
    more = "" if calls.one else f' (gap "," gap {call})*'
    rules.rule(f'body: gap "[" gap {call}{more} gap "]" gap {rules.mark(tagged.CLOSE)}')
    return "body"


def _hermes(rules: Rules, calls: Calls, fault: Fault) -> str:
    body = _hermes_body(rules, calls, fault)
    opened = rules.mark(tagged.OPEN)
    rules.rule(f"calls: {opened} {body}" + ("" if calls.one else f" (gap {opened} {body})*"))
    return "calls"


def _smollm(rules: Rules, calls: Calls, fault: Fault) -> str:
    body = _smollm_body(rules, calls, fault)
    rules.rule(f"calls: {rules.mark(tagged.OPEN)} {body}")
    return "calls"


def _llama(rules: Rules, calls: Calls, fault: Fault) -> str:
    call = (_as_json if calls.beside else arguments)(rules, calls.tools, "parameters", fault)
    rules.rule(f"gap: {GAP}")
    tag = rules.mark(bare.TAG)
    more = "" if calls.one else f' (gap ";" gap {call})*'
    rules.rule(f"calls: {f'{tag}? ' if tag.startswith('<') else ''}{call}{more}")
    return "calls"


def _hermes_free(rules: Rules, calls: Calls, fault: Fault, unlike: str) -> str:
    return _tagged_free(rules, _hermes_body(rules, calls, fault), unlike)


def _smollm_free(rules: Rules, calls: Calls, fault: Fault, unlike: str) -> str:
    return _tagged_free(rules, _smollm_body(rules, calls, fault), unlike)


def _tagged_free(rules: Rules, inside: str, unlike: str) -> str:
    rules.until("head", tagged.OPEN, unlike=unlike)
    rules.until("next", tagged.OPEN)
    rules.rule(f"TAIL: {without(tagged.OPEN)}")
    rules.rule(f"free: TAIL | head {inside} (next {inside})* TAIL")
    return "free"


def _llama_free(rules: Rules, calls: Calls, fault: Fault, _unlike: str) -> str:
    # A call begins a line with `{"`: no other line of the answer may.
    called = _llama(rules, calls, fault)
    line = r'[ \t\r]*([^{ \t\r\n][^\n]*|\{[ \t\r\n]*[^" \t\r\n][^\n]*)?'
    rules.rule(f"TALK: /{line}(\\n{line})*/")
    rules.rule(f"free: {called} | TALK")
    return "free"


_REQUIRED: Mapping[str, Callable[[Rules, Calls, Fault], str]] = {
    "hermes": _hermes,
    "llama3_json": _llama,
    "smollm2": _smollm,
}
_FREE: Mapping[str, Callable[[Rules, Calls, Fault, str], str]] = {
    "hermes": _hermes_free,
    "llama3_json": _llama_free,
    "smollm2": _smollm_free,
}
