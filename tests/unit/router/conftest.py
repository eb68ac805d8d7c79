"""What the tests of the router's core share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared.policy.config import RouterPolicy
from tests.support.fake_mesh import FakeMesh, roles

POLICY: dict[str, Any] = {
    "md_local_tokens": 8,
    "md_local_busy": 1.0,
    "singular_min_uncached": 40,
    "singular_max_output": 8,
}

MakeMesh = Callable[..., FakeMesh]


@pytest.fixture
def make_mesh() -> Iterator[MakeMesh]:
    """A mesh of fake workers that has met; at the test's end nothing may be left over anywhere."""
    made: list[FakeMesh] = []

    def make(
        prefill: int = 1, relay: int = 1, main: int = 1, *, policy: dict[str, Any] | None = None, **more: Any
    ) -> FakeMesh:
        settings = RouterPolicy(**(POLICY | (policy or {})))
        mesh = FakeMesh(1, roles(prefill, relay, main), settings, **more)
        mesh.run(1.0)
        made.append(mesh)
        return mesh

    yield make
    for mesh in made:
        mesh.settle()
        mesh.run(mesh.now + 40.0)
        assert mesh.problems() == []
