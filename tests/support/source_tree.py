"""The project's Python source as syntax trees: module names, imports, what a module reaches through them.

Reads text only and imports nothing that it looks at. The rules are in `tests.support.architecture`.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ("shared", "services", "scripts", "tests", "benchmarks")


@dataclass(frozen=True)
class Import:
    """One imported name, absolute. `lazy`: inside a function; `typing`: under `if TYPE_CHECKING`."""

    target: str
    line: int
    lazy: bool = False
    typing: bool = False


@dataclass(frozen=True)
class Module:
    """One file: dotted name (a package's is its folder's), path for messages, source text."""

    name: str
    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.source, self.path)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """All imports of the file, wherever they stand. `from a import b` gives a.b."""
        return tuple(_imports(self.tree.body, lazy=False, typing=False))

    @cached_property
    def origins(self) -> dict[str, str]:
        """What each imported local name stands for."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return found

    def origin(self, node: ast.expr) -> str:
        """The dotted name of an expression such as `np.random.rand`, imports resolved; "" if it has none."""
        if isinstance(node, ast.Name):
            return self.origins.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.origin(node.value)
            return f"{base}.{node.attr}" if base else ""
        if isinstance(node, ast.Subscript):
            return self.origin(node.value)
        return ""


def _imports(body: Iterable[ast.AST], *, lazy: bool, typing: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, lazy, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield from (Import(f"{base}.{alias.name}", node.lineno, lazy, typing) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.body, lazy=lazy, typing=True)
            yield from _imports(node.orelse, lazy=lazy, typing=typing)
        else:
            inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(ast.iter_child_nodes(node), lazy=inside, typing=typing)


def within(name: str, prefix: str) -> bool:
    """Whether the dotted `name` is `prefix` or lies under it."""
    return name == prefix or name.startswith(f"{prefix}.")


def longest(name: str, prefixes: Iterable[str]) -> str:
    """The longest of `prefixes` that `name` lies within; "" if none."""
    return max((prefix for prefix in prefixes if within(name, prefix)), key=len, default="")


def from_sources(sources: Mapping[str, str]) -> dict[str, Module]:
    """Modules out of {dotted name: text}, for trying a rule on a few lines."""
    return {name: Module(name, f"{name.replace('.', '/')}.py", text) for name, text in sources.items()}


def read_project(root: Path = ROOT) -> dict[str, Module]:
    """Every Python file of the project, by dotted name."""
    modules: dict[str, Module] = {}
    for path in sorted(path for folder in SOURCE for path in (root / folder).rglob("*.py")):
        relative = path.relative_to(root)
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        modules[name] = Module(name, str(relative), path.read_text(encoding="utf-8"))
    return modules


def reached(modules: Mapping[str, Module], start: str, *, lazy: bool) -> Iterator[tuple[Import, list[str]]]:
    """Every import that running `start` leads to, with the chain of project modules to it.

    Imports for type checkers do not run; those inside functions count with `lazy`. The packages above an
    imported module run too.
    """
    chains: dict[str, list[str]] = {}
    queue: list[str] = []

    def visit(name: str, chain: list[str]) -> None:
        parts = name.split(".")
        for prefix in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if prefix in modules and prefix not in chains:
                chains[prefix] = [*chain, prefix]
                queue.append(prefix)

    visit(start, [])
    while queue:
        name = queue.pop(0)
        for found in modules[name].imports:
            if found.typing or (found.lazy and not lazy):
                continue
            yield found, chains[name]
            visit(found.target, chains[name])
