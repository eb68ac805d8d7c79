"""Finds the names of all metrics in the source: what is counted, and what the processes report beside it.

A name made at run time is a pattern: `failed_*_total`. Reads the source as text and runs none of it.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Who reports what is counted in a folder, and how its names are built in /metrics.
FOLDERS: Mapping[str, tuple[str, str]] = {
    "shared/worker": ("workers", "{}"),
    "shared/engine": ("workers", "engine_{}_total"),
    "services/router": ("router", "{}"),
    "shared/transport": ("all", "transport_{}_total"),
}
# Methods that return metrics by name -> how their names are built.
REPORTING: Mapping[str, str] = {
    "numbers": "{}",
    "snapshot": "{}",
    "counts": "held_{}",
    "counters": "engine_{}_total",
}


def metric_names(root: Path = ROOT) -> dict[str, set[str]]:
    """Name or pattern, as /metrics has it after its prefix `pdd_` -> who reports it."""
    found: dict[str, set[str]] = {}
    for folder, (reporter, form) in FOLDERS.items():
        for file in sorted((root / folder).rglob("*.py")):
            for name in _names(ast.parse(file.read_text(encoding="utf-8")), form):
                found.setdefault(name, set()).add(reporter)
    return dict(sorted(found.items()))


def _names(tree: ast.Module, form: str) -> Iterator[str]:
    made = _made(tree)
    for node in ast.walk(tree):
        for name in _counted(node, made):
            yield form.format(name)
        if isinstance(node, ast.FunctionDef) and node.name in REPORTING:
            for name in _reported(node):
                yield REPORTING[node.name].format(name)


def _made(tree: ast.Module) -> dict[str, ast.expr]:
    """What makes names beforehand: the values of a module's tables, and what its functions return."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.DictComp(value=value)):
                found[name] = value
            case ast.FunctionDef(name=name, body=[*_, ast.Return(value=ast.JoinedStr() as value)]):
                found[name] = value
    return found


def _counted(node: ast.AST, made: Mapping[str, ast.expr]) -> Iterator[str]:
    """The X of `site.count("X")` and of `counters["X"] += n`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "count":
        if node.args and ast.unparse(node.func.value).endswith(("site", "mesh")):
            match node.args[0]:
                case ast.Subscript(value=ast.Name(id=name)) | ast.Call(func=ast.Name(id=name)):
                    yield from _texts(made[name]) if name in made else ()
                case text:
                    yield from _texts(text)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        counted = ast.unparse(node.target.value).endswith("counters")
        yield from _texts(node.target.slice) if counted else ()


def _reported(function: ast.FunctionDef) -> Iterator[str]:
    """Keys of the dicts that a function makes. What it takes over from another dict is found where that is
    made."""
    for node in ast.walk(function):
        keys: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            keys = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.DictComp) and "counters" not in ast.unparse(node.generators[0].iter):
            keys = [node.key]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            keys = [node.targets[0].slice]
        for key in keys:
            yield from (name for name in _texts(key) if name != "held_*")


def _texts(node: ast.expr) -> Iterator[str]:
    """A literal's text, with `*` for what is put in, without labels; nothing where the text is not known."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.partition("{")[0]
    elif isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values]
        yield "".join(parts).partition("{")[0]
