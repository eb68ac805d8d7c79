"""Makes the runner of a model for a device. Torch, and what a GPU needs, are imported only here and below."""

from __future__ import annotations

from pathlib import Path

from shared.engine.device.runner import DeviceRunner
from shared.engine.runner import TorchRunner


def load_runner(
    directory: Path,
    *,
    dtype: str,
    kv_blocks: int,
    block_tokens: int,
    device: str,
    threads: int,
    most_running: int,
) -> TorchRunner | DeviceRunner:
    """The runner of a Hugging Face directory on "cpu", "cuda" or "cuda:INDEX".

    `threads` are a CPU step's; `most_running` sequences a GPU step is recorded for. Raises ModelError and
    ConfigError as the runners do.
    """
    if device == "cpu":
        return TorchRunner(
            directory, dtype=dtype, kv_blocks=kv_blocks, block_tokens=block_tokens, threads=threads
        )
    return DeviceRunner(
        directory,
        dtype=dtype,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        device=device,
        most_running=most_running,
    )
