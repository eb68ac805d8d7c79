"""A grammar's text while it is put together: rules in Lark, and schemas beside them by name. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable

GAP = r"/[ \n\r\t]{0,8}/"
"""White space between parts that a format leaves open."""
ANYTHING = r"(?s:.*)"
"""As a regular expression; tokens that are marks are no text and do not match."""
Mark = Callable[[str], int | None]
"""The id of a text that is a mark's token, and no text to grammars; None: it is text."""


class Rules:
    """Rules of one grammar."""

    def __init__(self, special: Mark) -> None:
        self._special = special
        self._lines: list[str] = []
        self._beside: list[str] = []

    def rule(self, line: str) -> None:
        """`name: expansion`, or a terminal's in capitals."""
        self._lines.append(line)

    def schema(self, text: str) -> str:
        """How a rule refers to a schema of this text."""
        return self._add("json_schema", text)

    def grammar(self, text: str) -> str:
        """How a rule refers to a whole grammar of this text, which has a `start` of its own."""
        return self._add("lark_grammar", json.dumps(text, ensure_ascii=False))

    def mark(self, text: str) -> str:
        """How a rule refers to a mark: as the token that it is, or as text."""
        token = self._special(text)
        return literal(text) if token is None else f"<[{token}]>"

    def until(self, name: str, mark: str, *, unlike: str = "") -> None:
        """Rules by which `name` is any text up to and with a mark. `unlike`: what it may not begin with."""
        barred = f" & ~/{escaped(unlike)}{ANYTHING}/" if unlike else ""
        if self._special(mark) is not None:
            self.rule(f"{name.upper()}: {without(mark)}{barred}")
            self.rule(f"{name}: {name.upper()} {self.mark(mark)}")
        else:
            self.rule(f"{name.upper()}: /{ANYTHING}{escaped(mark)}/{barred}")
            self.rule(f"{name}[lazy]: {name.upper()}")

    def text(self) -> str:
        """The grammar."""
        lark = json.dumps("\n".join(self._lines), ensure_ascii=False)
        return '{"grammars": [' + ", ".join([f'{{"lark_grammar": {lark}}}', *self._beside]) + "]}"

    def _add(self, kind: str, text: str) -> str:
        name = f"part{len(self._beside)}"
        self._beside.append(f'{{"name": "{name}", "{kind}": {text}}}')
        return f"@{name}"


def without(mark: str) -> str:
    """Any text, as a terminal's expansion, in which a mark does not stand."""
    return f"/{ANYTHING}/ & ~/{ANYTHING}{escaped(mark)}{ANYTHING}/"


def literal(text: str) -> str:
    """A text in Lark."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A text in a regular expression of Lark."""
    return "".join(_ESCAPES.get(sign, "\\" + sign if sign in _SIGNS else sign) for sign in text)


_SIGNS = "\\/.^$*+?()[]{}|-&~#"
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
