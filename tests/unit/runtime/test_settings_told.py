"""Every time-out is a setting, and is in the log of a process that starts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shared.policy.config import LinePolicy, LinkPolicy, RouterPolicy, WorkerPolicy
from shared.runtime.field_docs import field_docs
from shared.runtime.settings_told import told

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = ("services/__main__.py", "services/router/status")
"""What a person runs, not a service."""


@pytest.mark.parametrize("kind", [LinkPolicy, LinePolicy, WorkerPolicy, RouterPolicy])
def test_a_section_is_told_with_all_its_seconds(
    kind: type[LinkPolicy] | type[LinePolicy] | type[WorkerPolicy] | type[RouterPolicy],
) -> None:
    section = kind()
    [(name, values)] = told(policy=section)
    assert name == "policy"
    seconds = [key for key, text in field_docs(kind).items() if text.startswith(("Seconds", "Milliseconds"))]
    assert seconds
    assert all(values[key] == getattr(section, key) for key in seconds)


def limits(file: Path) -> list[str]:
    """Calls that limit a time by a number that stands in the code."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "timeout")]
        limiting = node.func.attr in ("timeout", "wait_for", "wait")
        if limiting and any(isinstance(one, ast.Constant) and isinstance(one.value, float) for one in given):
            found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return found


def test_no_service_limits_a_time_by_a_number_in_its_code() -> None:
    files = [
        file
        for room in ("shared", "services")
        for file in (ROOT / room).rglob("*.py")
        if not str(file.relative_to(ROOT)).startswith(COMMANDS)
    ]
    assert len(files) > 100
    assert not [place for file in files for place in limits(file)]
