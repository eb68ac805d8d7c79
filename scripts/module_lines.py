"""One line a module for docs/structure.md: its path and the first sentence of its docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("shared", "services", "benchmarks", "scripts", "tests/support", "tests/chaos")


def module_lines() -> Iterator[str]:
    """A table per folder, in the order of the import rule's rooms."""
    for room in ROOMS:
        folders = sorted(
            {file.parent for file in (ROOT / room).rglob("*.py") if "__pycache__" not in file.parts}
        )
        for folder in folders:
            files = [file for file in sorted(folder.glob("*.py")) if first_sentence(file)]
            if not files:
                continue
            yield f"\n#### `{folder.relative_to(ROOT)}/`\n"
            yield "| module | what it is |\n|---|---|"
            for file in files:
                yield f"| `{file.name}` | {first_sentence(file)} |"


def first_sentence(file: Path) -> str:
    """The docstring's first sentence on one line; "" for a module without one."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence, stop, _rest = paragraph.partition(". ")
    return (sentence + stop).strip().replace("|", "\\|")
