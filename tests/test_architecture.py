"""The project keeps its rules, and each rule finds the lines that break it.

The rules and their tables are in `tests.support.architecture`.
"""

from functools import cache

import pytest

from tests.support import architecture
from tests.support.architecture import CHECKS, Check
from tests.support.source_tree import Module, from_sources, read_project


@cache
def project() -> dict[str, Module]:
    return read_project()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_project_keeps(check: Check) -> None:
    violations = [str(violation) for violation in check(project())]
    assert not violations, f"{check.__doc__}\n" + "\n".join(violations)


def test_the_whole_project_is_read() -> None:
    assert {"shared.errors", "scripts.model_cache", "tests.test_architecture"} <= project().keys()
    for name, module in project().items():
        assert module.tree is not None, name


def test_every_room_has_a_row() -> None:
    folders = {".".join(name.split(".")[:2]) for name in project() if name.startswith("shared.")}
    missing = folders - architecture.ROOMS.keys()
    assert not missing, f"add a row to ROOMS for {sorted(missing)}"


Sources = dict[str, str]
BAD: list[tuple[Check, Sources, str]] = [
    (architecture.rooms, {"shared.wire.a": "import shared.kv.pool"}, "shared.wire imports shared.kv.pool"),
    (architecture.rooms, {"shared.errors": "from shared import wire"}, "imports shared.wire"),
    (architecture.rooms, {"shared.kernels.a": "def f():\n    from shared.errors import X"}, ":2:"),
    (architecture.rooms, {"shared.worker.a": "from shared.kernels import rows"}, "imports shared.kernels"),
    (architecture.rooms, {"services.relay.a": "import services.router.app"}, "services.relay imports"),
    (architecture.rooms, {"shared.runtime.a": "import services"}, "imports services"),
    (architecture.rooms, {"shared.kv.a": "from tests.support import draw"}, "imports tests"),
    (
        architecture.independence,
        {"tests.support.reference": "import tests.support.b", "tests.support.b": "import shared.engine.x"},
        "tests/support/b.py:1: tests.support.reference must not reach shared.engine.x",
    ),
    (architecture.heavy_rooms, {"shared.worker.a": "import numpy as np"}, "numpy may be imported only"),
    (architecture.heavy_rooms, {"services.prefill.service": "def f():\n    import torch"}, "torch may be"),
    (
        architecture.light_closures,
        {
            "services.router.app": "from shared.engine import a",
            "shared.engine": "",
            "shared.engine.a": "def f():\n    from shared.engine.b import run",
            "shared.engine.b": "from torch import nn",
        },
        "without it: services.router.app -> shared.engine.a -> shared.engine.b -> torch.nn",
    ),
    (
        architecture.light_closures,
        {"shared.engine": "import torch", "shared.engine.scheduler": ""},
        "shared.engine.scheduler must run without it",
    ),
    (architecture.sans_io, {"shared.wire.a": "async def f():\n    pass"}, "neither awaits"),
    (architecture.sans_io, {"shared.kv.a": "from time import monotonic"}, "time.monotonic in a core"),
    (architecture.sans_io, {"shared.policy.a": "def f():\n    import asyncio"}, "asyncio in a core"),
    (architecture.sans_io, {"services.router.lifecycle": "import socket"}, "socket in a core"),
    (architecture.sockets, {"shared.worker.engine_loop": "import socket"}, "socket outside"),
    (architecture.unsafe_loading, {"tests.a": "import pickle"}, "pickle can run code"),
    (architecture.unsafe_loading, {"scripts.a": "import torch as t\nt.load('x')"}, "a.py:2: torch.load()"),
    (architecture.unsafe_loading, {"scripts.a": "from yaml import load"}, "yaml.load can run code"),
    (architecture.unsafe_loading, {"shared.a": "def f(x):\n    return eval(x)"}, "eval() can run code"),
    (architecture.names, {"shared.kv.utils": ""}, "'utils' says nothing"),
    (architecture.names, {"shared.kv.block_manager": ""}, "'block_manager' says nothing"),
    (architecture.names, {"shared.runtime.logging": ""}, "standard library"),
    (architecture.names, {"services.router.queue": ""}, "standard library"),
    (architecture.lengths, {"shared.a": "x = 1\n" * 501}, "501 lines"),
    (architecture.docstrings, {"shared.a": "x = 1\n"}, "no docstring"),
    (architecture.import_time, {"shared.a": "print('hello')"}, "`print('hello')` runs when"),
    (architecture.import_time, {"shared.a": "import threading\nLOCK = threading.Lock()"}, "threading.Lock()"),
    (architecture.import_time, {"shared.a": "X = [open(p) for p in 'ab']"}, "open() is called"),
    (
        architecture.import_time,
        {"shared.a": "from prometheus_client import Counter\nN = Counter('n', '')"},
        "Coun",
    ),
    (
        architecture.import_time,
        {"shared.a": "import os\nclass A:\n    home = os.getenv('HOME')"},
        "os.getenv()",
    ),
    (architecture.import_time, {"shared.a": "import time\ndef f(at=time.time()):\n    pass"}, "time.time()"),
    (
        architecture.import_time,
        {"shared.a": "import os\ndef f():\n    os.mkdir('x')\nX = f()"},
        "a.py:4: f()",
    ),
    (
        architecture.import_time,
        {"shared.a": "R = {}\ndef add(f):\n    R[f] = f\n@add\ndef g(): pass"},
        "registry",
    ),
    (architecture.import_time, {"shared.a": "for x in range(3):\n    pass"}, "for x in range(3)"),
    (
        architecture.environment,
        {"shared.kv.a": "import os\ndef f():\n    return os.environ['X']"},
        "environment",
    ),
    (architecture.environment, {"services.relay.service": "from os import getenv\ngetenv"}, "environment"),
    (architecture.log_events, {"shared.a": "def f(log, x):\n    log.info(f'got {x}')"}, "constant string"),
    (architecture.log_events, {"shared.a": "def f(self):\n    self._log.error('a' + b)"}, "constant string"),
    (architecture.hidden_state, {"shared.a": "def f():\n    global X\n    X = 1"}, "not global"),
    (architecture.hidden_state, {"tests.a": "from unittest.mock import patch"}, "fakes"),
]
GOOD: list[tuple[Check, Sources]] = [
    (architecture.rooms, {"shared.transport.a": "import shared.wire.b\nfrom shared import errors"}),
    (architecture.rooms, {"services.router.a": "from services.router import b\nimport shared.worker.c"}),
    (architecture.rooms, {"shared.wire.a": "import sharedthing, asyncio"}),
    (architecture.heavy_rooms, {"shared.engine.a": "import torch"}),
    (architecture.heavy_rooms, {"shared.kv.b": "if TYPE_CHECKING:\n    import torch"}),
    (architecture.light_closures, {"shared.transport.a": "def f():\n    import shared.engine.b"}),
    (
        architecture.sans_io,
        {"shared.transport.a": "async def f(): pass", "services.router.front.app": "import time"},
    ),
    (architecture.unsafe_loading, {"shared.a": "import torch\ntorch.frombuffer(b'')\nx.load()"}),
    (architecture.names, {"shared.kv.pool": "", "services.router.__main__": ""}),
    (architecture.lengths, {"shared.a": "x = 1\n" * 500}),
    (architecture.docstrings, {"shared.a": '"""Job."""\nx = 1\n', "shared": ""}),
    (
        architecture.import_time,
        {"shared.a": "import re\nX = re.compile('a')\nif __name__ == '__main__':\n    f()"},
    ),
    (
        architecture.import_time,
        {"shared.a": "try:\n    import uvloop\nexcept ImportError:\n    uvloop = None"},
    ),
    (architecture.import_time, {"shared.a": "def f():\n    return {1: 'a b'.split()}\nX = frozenset(f())"}),
    (
        architecture.import_time,
        {"shared.a": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int"},
    ),
    (architecture.import_time, {"shared.a": "class A:\n    pass\nX = {'a': A(), 'b': lambda: open('x')}"}),
    (architecture.environment, {"services.relay.config": "import os\nX = os.environ"}),
    (architecture.log_events, {"shared.a": "def f(log, x):\n    log.info('got', x=f'{x}')"}),
]


@pytest.mark.parametrize(("check", "sources", "expected"), BAD)
def test_a_breach_is_found(check: Check, sources: Sources, expected: str) -> None:
    assert expected in "\n".join(str(violation) for violation in check(from_sources(sources)))


@pytest.mark.parametrize(("check", "sources"), GOOD)
def test_what_is_allowed_passes(check: Check, sources: Sources) -> None:
    assert not [str(violation) for violation in check(from_sources(sources))]


def test_every_rule_is_tried() -> None:
    assert {check for check, _, _ in BAD} == set(CHECKS)
