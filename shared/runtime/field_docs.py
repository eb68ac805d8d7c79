"""Reads the docstrings under a Struct's fields, which Python itself throws away, from its source."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap

import msgspec


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Field name -> its docstring on one line, for those that have one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    assert isinstance(tree.body[0], ast.ClassDef)
    body = tree.body[0].body
    found: dict[str, str] = {}
    for field, after in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[field.target.id] = " ".join(str(after.value.value).split())
    return found
