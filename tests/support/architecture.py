"""The rules of docs/structure.md that a machine can check, one function each: modules in, violations out.

The tables here *are* the rules: a new room or an exception is a row, with its reason.
`tests.test_architecture` applies them to the project and tries each on lines that break it.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.support.import_time import effects
from tests.support.source_tree import Module, longest, reached, within

MAX_LINES = 500

# What a room may import of the project beside itself. The longest matching name counts.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "shared": (),
    "shared.errors": (),
    "shared.policy": ("shared.errors",),
    "shared.wire": ("shared.errors", "shared.policy"),
    "shared.kv": ("shared.errors", "shared.policy"),
    "shared.transport": ("shared.errors", "shared.policy", "shared.wire", "shared.kv"),
    "shared.kernels": (),
    "shared.engine": ("shared.errors", "shared.policy", "shared.kv", "shared.kernels"),
    "shared.worker": (
        "shared.errors",
        "shared.policy",
        "shared.wire",
        "shared.kv",
        "shared.transport",
        "shared.engine",
        "shared.runtime",
    ),
    "shared.runtime": ("shared.errors", "shared.policy"),
    "services": ("shared",),
    "services.prefill": ("shared",),
    "services.relay": ("shared",),
    "services.main_decode": ("shared",),
    "services.router": ("shared",),
    "scripts": ("shared", "services", "benchmarks.wan", "tests.support"),
    "benchmarks": ("shared", "services", "scripts", "tests.support"),
    "tests": ("shared", "services", "scripts", "benchmarks"),
}

# What checks the engine shares no code with it.
INDEPENDENT = (
    "tests.support.reference",
    "tests.support.draw",
    "tests.support.replay",
    "tests.support.tiny_model",
)

HEAVY = ("torch", "triton", "numpy", "safetensors", "gguf", "transformers")
# Rooms that may import heavy packages at all, and modules that must not reach any of them, by any road.
HEAVY_ROOMS = (
    "shared.kernels",
    "shared.kv.store",
    "shared.engine",
    "shared.transport.planes",
    "scripts",
    "tests",
    "benchmarks",
)
LIGHT = (
    "services.router",
    "services.__main__",
    "shared.errors",
    "shared.policy",
    "shared.wire",
    "shared.transport",
    "shared.runtime",
    "shared.kv.hashing",
    "shared.kv.layout",
    "shared.kv.pool",
    "shared.kv.ledger",
    "shared.engine.api",
    "shared.engine.sequence",
    "shared.engine.scheduler",
    "shared.engine.engine",
    "shared.engine.pace",
    "shared.engine.refusal",
    "shared.engine.huge_pages",
    "shared.engine.attempt",
    "shared.engine.synthetic",
    "shared.engine.fingerprint",
    "shared.engine.grammar",
    "shared.engine.constrained",
)
NOT_LIGHT = ("shared.transport.planes",)  # handed to the transport by who has numpy

# Cores: bytes, events and `now` in, instructions out. Exceptions are the shells around them.
SANS_IO = ("shared.wire", "shared.kv", "shared.policy", "shared.worker", "services.router", "shared.engine")
SHELLS = (
    "shared.worker.compiling",
    "shared.worker.engine_loop",
    "shared.worker.parts",
    "shared.worker.process",
    "shared.engine.runner",  # measures its own steps
    "shared.engine.native.build",  # runs a compiler
    "shared.engine.device.runner",  # the same
    "shared.engine.synthetic",  # waits as long as the step it stands for
    "shared.engine.fingerprint",
    "shared.engine.grammar",  # used from several threads
    "shared.engine.constrained",  # measures what masks cost
    "services.router.__main__",
    "services.router.service",
    "services.router.status.command",  # looks again after a while
    "services.router.front.admin",
    "services.router.front.app",
    "services.router.front.chats",
    "services.router.front.delivery",
    "services.router.front.desk",
    "services.router.front.endpoints",
    "services.router.front.generation",
    "services.router.front.intake",
    "services.router.front.messages.endpoint",
    "services.router.front.openapi.endpoint",
    "services.router.front.prompts",
    "services.router.front.responses.endpoint",
    "services.router.front.runs",
    "services.router.front.structure.trial",
    "services.router.front.ui.feed",
    "services.router.front.ui.page",
    "services.router.front.template",  # a chat template may ask for the date
)
CLOCKS_AND_SOCKETS = (
    "anyio",
    "asyncio",
    "concurrent",
    "datetime",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "uvloop",
)
SOCKET_ROOMS = ("shared.transport", "shared.runtime", "scripts", "tests", "benchmarks")

UNSAFE_MODULES = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib")
UNSAFE_CALLS = (
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "numpy.load",
    "eval",
    "exec",
    "multiprocessing.connection.Client",
    "multiprocessing.connection.Listener",
)

VAGUE_WORDS = frozenset("util utils common helper helpers manager managers handler handlers misc".split())
LOG_METHODS = frozenset("debug info warning error exception critical".split())
# Modules below the services' configuration that may still read the environment.
ENVIRONMENT_READERS = (
    "shared.runtime",
    "shared.kernels.launch",  # TRITON_INTERPRET is triton's own switch
    "shared.engine.fingerprint",  # where the user's cache is
    "shared.engine.native.build",  # the same, and which compiler
)


@dataclass(frozen=True)
class Violation:
    """One breach, shown as path:line: text."""

    module: Module
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module.path}:{self.line}: {self.text}"


Modules = Mapping[str, Module]
Check = Callable[[Modules], Iterator[Violation]]


def _under(module: Module, prefixes: tuple[str, ...]) -> bool:
    return any(within(module.name, prefix) for prefix in prefixes)


def _product(modules: Modules) -> Iterator[Module]:
    return (module for module in modules.values() if _under(module, ("shared", "services")))


def rooms(modules: Modules) -> Iterator[Violation]:
    """A room imports only what its row in ROOMS names."""
    for module in modules.values():
        room = longest(module.name, ROOMS)
        for found in module.imports:
            other = longest(found.target, ROOMS)
            if other and other != room and not any(within(found.target, each) for each in ROOMS[room]):
                allowed = ", ".join(ROOMS[room]) or "nothing of the project"
                yield Violation(module, found.line, f"{room} imports {found.target}; it may import {allowed}")


def independence(modules: Modules) -> Iterator[Violation]:
    """What the engine is checked with reaches no code of the engine."""
    for name in INDEPENDENT:
        for found, chain in reached(modules, name, lazy=True) if name in modules else ():
            if found.target.partition(".")[0] in ("shared", "services"):
                yield Violation(modules[chain[-1]], found.line, f"{name} must not reach {found.target}")


def heavy_rooms(modules: Modules) -> Iterator[Violation]:
    """Only kernels, the store and the engine know torch and its like."""
    for module in modules.values():
        for found in module.imports:
            heavy = not found.typing and found.target.partition(".")[0] in HEAVY
            if heavy and not _under(module, HEAVY_ROOMS):
                yield Violation(
                    module, found.line, f"{found.target} may be imported only under {HEAVY_ROOMS}"
                )


def light_closures(modules: Modules) -> Iterator[Violation]:
    """Importing a light module imports no heavy package. For the router that holds at any later time too."""
    for module in modules.values():
        if not _under(module, LIGHT) or _under(module, NOT_LIGHT):
            continue
        for found, chain in reached(modules, module.name, lazy=_under(module, ("services.router",))):
            if found.target.partition(".")[0] in HEAVY:
                road = " -> ".join([*chain, found.target])
                yield Violation(modules[chain[-1]], found.line, f"{module.name} must run without it: {road}")


def sans_io(modules: Modules) -> Iterator[Violation]:
    """No coroutine, clock, thread or socket in a core."""
    for module in modules.values():
        if not _under(module, SANS_IO) or _under(module, SHELLS):
            continue
        for found in module.imports:
            if found.target.partition(".")[0] in CLOCKS_AND_SOCKETS:
                yield Violation(
                    module, found.line, f"{found.target} in a core: time and I/O come as arguments"
                )
        for node in ast.walk(module.tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                yield Violation(module, node.lineno, "a core neither awaits nor is awaited")


def sockets(modules: Modules) -> Iterator[Violation]:
    """The transport (and the processes' own status pages) hold the only sockets."""
    for module in modules.values():
        for found in module.imports:
            if found.target.partition(".")[0] in ("socket", "ssl") and not _under(module, SOCKET_ROOMS):
                yield Violation(module, found.line, f"{found.target} outside {SOCKET_ROOMS}")


def unsafe_loading(modules: Modules) -> Iterator[Violation]:
    """Nothing anywhere turns bytes into code."""
    for module in modules.values():
        for found in module.imports:
            if found.target.partition(".")[0] in UNSAFE_MODULES or found.target in UNSAFE_CALLS:
                yield Violation(module, found.line, f"{found.target} can run code out of data")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and module.origin(node.func) in UNSAFE_CALLS:
                yield Violation(module, node.lineno, f"{module.origin(node.func)}() can run code out of data")


def names(modules: Modules) -> Iterator[Violation]:
    """A module's name says what it holds, and hides nothing of the standard library."""
    for module in modules.values():
        stem = module.name.rpartition(".")[2]
        vague = VAGUE_WORDS & set(stem.split("_"))
        if vague:
            yield Violation(module, 1, f"the name {stem!r} says nothing: {', '.join(sorted(vague))}")
        if stem in sys.stdlib_module_names and not stem.startswith("__"):
            yield Violation(module, 1, f"the name {stem!r} is one of the standard library's")


def lengths(modules: Modules) -> Iterator[Violation]:
    """No file outgrows one head."""
    for module in modules.values():
        count = len(module.source.splitlines())
        if count > MAX_LINES:
            yield Violation(
                module, MAX_LINES + 1, f"{count} lines; split it (at most {MAX_LINES}, aim for 300)"
            )


def docstrings(modules: Modules) -> Iterator[Violation]:
    """A module with code says its job."""
    for module in modules.values():
        if _under(module, ("tests.unit", "tests.property", "tests.integration")):
            continue  # a test file's name and the names of its tests say it
        if module.tree.body and not ast.get_docstring(module.tree):
            yield Violation(module, 1, "the module has no docstring that says its job")


def import_time(modules: Modules) -> Iterator[Violation]:
    """Importing a module defines things and does nothing."""
    for module in modules.values():
        if _under(module, ("shared", "services", "scripts")):
            yield from (Violation(module, line, text) for line, text in effects(module))


def environment(modules: Modules) -> Iterator[Violation]:
    """Configuration comes from the mesh file; only the outermost code reads the environment."""
    for module in _product(modules):
        outer = module.name.endswith((".config", ".__main__")) or _under(module, ENVIRONMENT_READERS)
        for node in () if outer else ast.walk(module.tree):
            if isinstance(node, ast.Attribute | ast.Name) and module.origin(node) in (
                "os.environ",
                "os.getenv",
            ):
                yield Violation(module, node.lineno, "reads the environment below the configuration")


def log_events(modules: Modules) -> Iterator[Violation]:
    """A log event is a constant; what varies is bound to it."""
    for module in _product(modules):
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            receiver = ast.unparse(node.func.value).rpartition(".")[2].lower()
            if (
                node.func.attr in LOG_METHODS
                and "log" in receiver
                and not isinstance(node.args[0], ast.Constant)
            ):
                yield Violation(module, node.lineno, "the event of a log call must be a constant string")


def hidden_state(modules: Modules) -> Iterator[Violation]:
    """No `global`, no patched modules."""
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Global):
                yield Violation(module, node.lineno, "state is passed, not global")
        for found in module.imports:
            if within(found.target, "unittest.mock"):
                yield Violation(module, found.line, "small real fakes in tests/support instead of mocks")


CHECKS: tuple[Check, ...] = (
    rooms,
    independence,
    heavy_rooms,
    light_closures,
    sans_io,
    sockets,
    unsafe_loading,
    names,
    lengths,
    docstrings,
    import_time,
    environment,
    log_events,
    hidden_state,
)
