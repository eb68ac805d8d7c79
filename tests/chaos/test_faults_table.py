"""docs/faults.md: each fault once, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
TABLE = TESTS.parent / "docs" / "faults.md"
IDS = {
    "A": (1, 3, 4, 5, 6, 7, 9, 11, 13, 14, 15, 16, 17),
    "B": (1, 2, 4, 5, 6, 7, 9, 10, 12, 13, 16, 17, 18),
    "C": (1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 17, 18, 19, 21),
    "D": (2, 3, 5, 6, 7, 9),
    "E": (1, 3, 4, 5, 6, 7, 9),
    "F": (2, 3, 5, 6, 7, 8, 10),
    "G": (1, 2, 4, 5, 6, 7, 9, 11),
    "H": (2, 3, 4, 6, 7, 8),
    "I": (1, 3, 4, 6, 7, 8, 9, 10, 12, 13, 15, 16, 17),
    "J": (1, 3, 5, 6, 7),
    "K": (1, 2, 3, 5),
    "L": (1, 2, 5),
    "M": (1, 2, 3, 4, 5, 6, 8, 10),
}


def test_each_fault_has_its_row() -> None:
    rows = re.findall(r"^\| ([A-M]\d+) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [f"{part}{number}" for part, numbers in IDS.items() for number in numbers]


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", TABLE.read_text(encoding="utf-8"))
    assert len(named) > 100
    known: dict[str, set[str]] = {}
    missing = []
    for file, name in named:
        if file not in known:
            path = TESTS / file
            tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
            known[file] = {"", *(one.name for one in tree.body if isinstance(one, kinds))}
            if not path.exists():
                missing.append(file)
        if name not in known[file]:
            missing.append(f"{file}::{name}")
    assert not missing
