"""The model's chat template: messages in, the prompt's text out. Knows nothing of tokens or HTTP.

The template comes from the model's directory and runs in a sandbox, with the names that templates of this
kind use (`raise_exception`, `strftime_now`, `tojson`, loop controls, generation marks).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequest, ModelError

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
"""Names of the template's own that `chat_template_kwargs` may not set."""

_END = "\ue000\u2003"
"""Stands after a text that is continued while the template renders it: the text alone may be found in the
template's own marks. Where its white space is gone, the template trims."""


class WrittenJson(dict[str, Any]):
    """A JSON object that a model wrote: `tojson` gives the very text, so that it comes back as it was
    drawn."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


class ChatTemplate:
    """One compiled template."""

    def __init__(
        self,
        source: str,
        special: Mapping[str, str],
        today: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        """`special`: bos_token, eos_token and so on. Raises ModelError where the template does not
        compile."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMark, loopcontrols]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: today().strftime(form)
        self._special = dict(special)
        self.source = source
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"chat template, line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Raises InvalidRequest where the template refuses the messages or fails over
        them."""
        names = {"documents": None, **self._special, **(options or {}), "tools": tools}
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **names
            )
        except _Refused as error:
            raise InvalidRequest(f"messages: the model's chat template says: {error}", "messages") from error
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            AttributeError,
            RecursionError,
        ) as error:
            raise InvalidRequest(
                f"messages: the model's chat template cannot render them: {error}", "messages"
            ) from error

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text up to the end of the last message's own text, which the model is to continue."""
        content = str(messages[-1]["content"])
        marked = [*messages[:-1], {**messages[-1], "content": content + _END}]
        text = self.render(marked, add_generation_prompt=False, tools=tools, options=options)
        at = text.rfind(_END.rstrip())
        begun = text[:at] if text.startswith(_END, at) else text[:at].rstrip()
        if at < 0 or not content.strip() or not begun.rstrip().endswith(content.strip()):
            raise InvalidRequest(
                "messages: the last message cannot be continued: it is empty, or the model's chat template "
                "changes its text; send a text without what the template takes out",
                "messages",
            )
        return begun


class _Refused(Exception):
    """The template called raise_exception."""


def _raise(message: object) -> str:
    raise _Refused(str(message))


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes HTML, which no model expects."""
    if isinstance(value, WrittenJson) and not (ensure_ascii or indent or separators or sort_keys):
        return value.text
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _GenerationMark(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's part for training; here it is only its
    body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
