"""Makes the runner of a model for a device. Torch, and what a GPU needs, are imported only here and below."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shared.engine.device.runner import DeviceRunner
from shared.engine.linear import has_matrix_unit
from shared.engine.native import build
from shared.engine.native.library import Library
from shared.engine.runner import TorchRunner
from shared.errors import BuildError


def compiled(otherwise: Callable[[str], None]) -> Library | None:
    """The CPU's forward in compiled code, compiled now where it never was for this machine.

    None where it cannot be: `otherwise` is told why.
    """
    try:
        path = build.library()
    except BuildError as error:
        otherwise(str(error))
        return None
    try:
        return Library(path)
    except OSError as error:
        otherwise(f"{path}: {error}; remove it, so that it is compiled again")
        return None


def load_runner(
    directory: Path,
    *,
    dtype: str,
    kv_blocks: int,
    block_tokens: int,
    device: str,
    threads: int,
    most_running: int,
    library: Library | None,
) -> TorchRunner | DeviceRunner:
    """The runner of a Hugging Face directory on "cpu", "cuda" or "cuda:INDEX".

    `threads` are a CPU step's, `library` its compiled code (torch computes without); `most_running` sequences
    a GPU step is recorded for. Raises ModelError and
    ConfigError as the runners do.
    """
    if device == "cpu":
        return TorchRunner(
            directory,
            dtype=dtype,
            kv_blocks=kv_blocks,
            block_tokens=block_tokens,
            threads=threads,
            library=library,
            matrix_unit=has_matrix_unit(),
        )
    return DeviceRunner(
        directory,
        dtype=dtype,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        device=device,
        most_running=most_running,
    )
