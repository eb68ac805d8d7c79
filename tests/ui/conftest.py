"""A real mesh of local services with traffic, and a real browser. Collected by `make test-ui` alone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.local_mesh import LocalMesh

collect_ignore_glob = [] if "CHROMIUM" in os.environ else ["test_*.py"]
SHOTS = Path(__file__).resolve().parents[2] / "build" / "ui-shots"


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMesh]:
    """Router, two prefills, a relay and two main decodes, with clients that talk to them."""
    with LocalMesh(tmp_path_factory.mktemp("mesh")) as running:
        running.wait_ready()
        with running.traffic():
            yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = driver.chromium.launch(executable_path=os.environ["CHROMIUM"], args=flags)
        yield running
        running.close()


@pytest.fixture(scope="session")
def shots() -> Path:
    """Where screenshots go."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS
