"""Live meshes run on uvloop, as the services do where it is installed; `test_loops` on asyncio's own too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from shared.engine.fingerprint import fingerprint
from tests.support.live_models import SharedModel, SyntheticModel
from tests.support.tiny_case import BLOCK_TOKENS, Case
from tests.support.tiny_model import TinyShape


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops to run on."""
    own = {"asyncio": asyncio.new_event_loop} if item.path.name == "test_loops.py" else {}
    return {"uvloop": uvloop.new_event_loop, **own}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The tiny random model with its reference."""
    return Case(Path(tmp_path_factory.mktemp("tiny")) / "model", TinyShape(heads=6, kv_heads=2))


@pytest.fixture(scope="session")
def tiny_shared(tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> SharedModel:
    """The tiny model for all workers of a mesh."""
    cache = Path(tmp_path_factory.mktemp("cache")) / "digests.json"
    return SharedModel(tiny.directory, tiny.model, fingerprint(tiny.directory, cache=cache), BLOCK_TOKENS)


@pytest.fixture(scope="session")
def synthetic(tiny: Case) -> SyntheticModel:
    """The synthetic engine, with the tiny model's tokenizer."""
    return SyntheticModel(tiny.directory)
