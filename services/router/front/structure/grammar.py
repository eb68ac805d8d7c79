"""The grammar of one request's answers: the thought first, then calls, or words of a form. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import grammar_from, regex_to_lark

from services.router.front.reading import thinking
from services.router.front.structure.calls import Calls, free_calls, required_calls
from services.router.front.structure.form import Form
from services.router.front.structure.lark import ANYTHING, GAP, Mark, Rules, escaped, literal
from services.router.front.structure.schema import Fault, check_schema, schema_text
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the answers of one request must look like."""

    form: Form | None = None
    calls: Calls | None = None
    thinks: bool = False
    """A thought may come first: the form holds after it."""
    opened: bool = False
    """The prompt ends inside a thought."""

    @property
    def path(self) -> str:
        """The parameter to name where the whole cannot be kept to."""
        if self.form is not None:
            return self.form.path
        return "tools" if self.calls is not None and not self.calls.required else "tool_choice"


def grammar_of(wanted: Wanted, special: Mark, fault: Fault) -> str:
    """The grammar's text. Raises InvalidRequest by place."""
    rules = Rules(special)
    answer = _answer(rules, wanted, fault)
    if not wanted.thinks:
        rules.rule(f"start: {answer}")
        return rules.text()
    rules.until("thought", thinking.CLOSE)
    rules.rule(f"pause: {GAP}")
    before = "thought pause"
    if not wanted.opened:
        rules.rule(f"opening: {GAP} {rules.mark(thinking.OPEN)}")
        before = f"({_opened(rules)} pause)?"
    rules.rule(f"start: {before} {answer}")
    return rules.text()


def _opened(rules: Rules) -> str:
    """A thought with its opening mark, as one piece of text where both marks are text."""
    close, opening = rules.mark(thinking.CLOSE), rules.mark(thinking.OPEN)
    if close.startswith("<") or opening.startswith("<"):
        return "opening thought"
    begin = r"[ \n\r\t]{0,8}" + escaped(thinking.OPEN)
    rules.rule(f"whole_thought[lazy]: /{begin}{ANYTHING}{escaped(thinking.CLOSE)}/")
    return "whole_thought"


def _answer(rules: Rules, wanted: Wanted, fault: Fault) -> str:
    calls, form = wanted.calls, wanted.form
    if calls is None:
        return _form(rules, form, fault) if form is not None else f"/{ANYTHING}/"
    if calls.required:
        return required_calls(rules, calls, fault)
    if form is not None:
        return f"({required_calls(rules, calls, fault)} | {_form(rules, form, fault)})"
    unlike = thinking.OPEN if wanted.thinks and not wanted.opened else ""
    return free_calls(rules, calls, fault, unlike=unlike)


def _form(rules: Rules, form: Form, fault: Fault) -> str:
    if form.schema is not None:
        check_schema(form.schema, form.path, fault)
        return rules.schema(schema_text(form.schema))
    if form.regex is not None:
        rules.rule(f"form: /{regex_to_lark(form.regex, '')}/")
        return "form"
    if form.choices:
        rules.rule(f"form: {' | '.join(literal(choice) for choice in form.choices)}")
        return "form"
    if form.grammar is not None:
        return rules.grammar(_lark(form.grammar, form.path))
    return _tags(rules, form, fault)


def _lark(text: str, path: str) -> str:
    """A client's grammar, in Lark or GBNF, as Lark."""
    try:
        return grammar_from("grammar", text)
    except (ValueError, LookupError, RecursionError) as error:
        raise InvalidRequest(f"{path}: is neither Lark nor GBNF: {error}", path) from error


def _tags(rules: Rules, form: Form, fault: Fault) -> str:
    """Words in which each trigger begins one of its tags."""
    made: list[str] = []
    for number, trigger in enumerate(form.triggers):
        rules.until(f"head{number}", trigger)
        bodies = []
        for tag in form.tags:
            if tag.begin.startswith(trigger):
                check_schema(tag.schema, tag.path, fault)
                inside = rules.schema(schema_text(tag.schema))
                rest = tag.begin[len(trigger) :]
                bodies.append(" ".join(one for one in (_said(rest), inside, _said(tag.end)) if one))
        made += [f"head{number} ({' | '.join(bodies)})"] if bodies else []
    rules.rule(f"TAIL: /{ANYTHING}/")
    rules.rule(f"tags: ({' | '.join(made)})* TAIL")
    return "tags"


def _said(text: str) -> str:
    return literal(text) if text else ""
