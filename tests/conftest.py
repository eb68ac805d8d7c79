"""What holds for every test: one quiet thread for torch, no deadlines, the development model as a fixture."""

import os
from pathlib import Path

import hypothesis
import pytest


def pytest_configure() -> None:
    """Before torch is imported: threads that spin while they wait would starve the other test processes."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    hypothesis.settings.register_profile("project", deadline=None)  # machines are shared and uneven
    hypothesis.settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where torch finds none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))


@pytest.fixture(scope="session")
def model_directory() -> Path:
    """The development model's Hugging Face directory (for tests marked `model`)."""
    from scripts.model_cache import model_dir

    return model_dir()
