"""Finds what a module does when it is imported, beside defining things.

Allowed: definitions, constants out of literals and of constructors known to have no effect, functions of the
same module that use nothing else, and the usual `if TYPE_CHECKING`, `if __name__`, `try: import`.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator

from tests.support.source_tree import Module, within

EFFECTFUL_BUILTINS = frozenset(
    "breakpoint compile delattr eval exec exit globals input locals open print quit setattr "
    "__import__".split()
)
# Calls that only make a value. A name covers all that lies under it.
HARMLESS = (
    "collections",
    "dataclasses",
    "enum",
    "fractions",
    "frozenset",
    "functools",
    "itertools",
    "msgspec",
    "operator",
    "pathlib",
    "re",
    "struct",
    "textwrap",
    "torch.finfo",
    "triton.Config",
    "triton.cdiv",
    "triton.language",
    "triton.next_power_of_2",
    "types",
    "typing",
)
HARMLESS_METHODS = frozenset(
    "add append as_posix decode encode format fromhex get items join joinpath keys lower replace resolve "
    "split strip upper values with_name with_suffix".split()
)
DECORATORS = (
    "abc",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "hypothesis",
    "msgspec",
    "pytest",
    "triton",
    "typing",
    "property",
    "staticmethod",
    "classmethod",
)
Found = Iterator[tuple[int, str]]


def effects(module: Module) -> Found:
    """(line, what is done) for everything that importing the module does."""
    yield from _Look(module).statements(module.tree.body)


class _Look:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.functions = {node.name: node for node in module.tree.body if isinstance(node, ast.FunctionDef)}
        self.classes = {node.name for node in module.tree.body if isinstance(node, ast.ClassDef)}
        self.trusted: set[str] = set()

    def statements(self, body: Iterable[ast.stmt]) -> Found:
        for node in body:
            yield from self.statement(node)

    def statement(self, node: ast.stmt) -> Found:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                pass
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self.decorators(node)
                yield from self.calls([*node.args.defaults, *filter(None, node.args.kw_defaults)])
            case ast.ClassDef():
                yield from self.decorators(node)
                yield from self.statements(node.body)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                yield from self.calls([node.value] if node.value else [])
            case ast.Assert() | ast.Delete():
                yield from self.calls([node])
            case ast.If() if self.is_guard(node.test):
                pass
            case ast.If():
                yield from self.calls([node.test])
                yield from self.statements([*node.body, *node.orelse])
            case ast.Try():
                handled = [statement for handler in node.handlers for statement in handler.body]
                yield from self.statements([*node.body, *handled, *node.orelse, *node.finalbody])
            case _ if type(node).__name__ == "TypeAlias":
                pass
            case _:
                yield node.lineno, f"`{ast.unparse(node).splitlines()[0]}` runs when the module is imported"

    @staticmethod
    def is_guard(test: ast.expr) -> bool:
        return ast.unparse(test).startswith("__name__ ==")

    def decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Found:
        for decorator in node.decorator_list:
            name = self.module.origin(decorator.func if isinstance(decorator, ast.Call) else decorator)
            setter = name.endswith((".setter", ".deleter", ".getter"))
            if not setter and not any(within(name, each) for each in DECORATORS):
                yield node.lineno, f"the decorator {name} runs when the module is imported; is it a registry?"

    def calls(self, nodes: Iterable[ast.AST]) -> Found:
        for root in nodes:
            deferred = {
                id(inner)
                for node in ast.walk(root)
                if isinstance(node, ast.Lambda)
                for inner in ast.walk(node)
            }
            for node in ast.walk(root):
                if isinstance(node, ast.Call) and id(node) not in deferred and not self.harmless(node):
                    yield node.lineno, f"{ast.unparse(node.func)}() is called when the module is imported"

    def harmless(self, call: ast.Call) -> bool:
        name = self.module.origin(call.func)
        if isinstance(call.func, ast.Attribute) and call.func.attr in HARMLESS_METHODS:
            return True
        if name in self.classes or any(within(name, each) for each in HARMLESS):
            return True
        if name in self.functions:
            return self.trusts(name)
        if name in vars(builtins):
            return name not in EFFECTFUL_BUILTINS
        return name.startswith("shared.") and name.rpartition(".")[2][:1].isupper()

    def trusts(self, name: str) -> bool:
        """Whether a function of this module itself calls only harmless things."""
        if name not in self.trusted:
            self.trusted.add(name)  # also ends recursion
            if any(self.calls(self.functions[name].body)):
                self.trusted.discard(name)
        return name in self.trusted
