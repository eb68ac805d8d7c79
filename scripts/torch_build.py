"""Chooses the build of torch: for NVIDIA GPUs, or for the CPU alone, which is far smaller.

Standard library only; it runs before anything is installed.
"""

import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

VERSION = "2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_ONLY = f"torch=={VERSION}+cpu"
CUDA = f"torch=={VERSION},!={VERSION}+cpu"
CUDA_SIZE = "2.7 GB to download, about 6 GB on disk"
REACH_S = 6.0
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1")


class SetupFailed(Exception):
    """Setting up cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class TorchBuild:
    """Which build, the arguments of pip that install it, and why it was chosen."""

    kind: str
    arguments: tuple[str, ...]
    reason: str


class Pip(Protocol):
    """`pip install` with the given arguments; whether it succeeded."""

    def __call__(self, *arguments: str, quiet: bool = False) -> bool: ...


def wanted_build(requested: str, pip: Pip, say: Callable[[str], None]) -> TorchBuild:
    """The build to install. `requested` is cpu, cuda or, to go by the machine, ""."""
    if requested == "cuda" or (not requested and has_nvidia_driver()):
        reason = "TORCH=cuda" if requested else "an NVIDIA driver is present"
        return TorchBuild("cuda", (CUDA,), f"the CUDA build, {CUDA_SIZE} ({reason})")
    say("looking for a CPU build of torch")
    if pip("--dry-run", "--no-deps", CPU_ONLY, quiet=True):
        return TorchBuild("cpu", (CPU_ONLY,), "a CPU build, from pip's configured sources")
    arguments = ("--extra-index-url", CPU_INDEX, CPU_ONLY)
    if reachable(CPU_INDEX) and pip("--dry-run", "--no-deps", *arguments, quiet=True):
        return TorchBuild("cpu", arguments, f"a CPU build, about 200 MB, from {CPU_INDEX}")
    if requested == "cpu":
        raise SetupFailed(
            f"TORCH=cpu: no CPU build of torch {VERSION} in pip's configured sources, and {CPU_INDEX} cannot "
            "be reached. Make one reachable, or take the larger build (no GPU needed either): TORCH=cuda"
        )
    text = f"PyPI's build, {CUDA_SIZE}: no smaller CPU build can be reached; it runs without a GPU too"
    return TorchBuild("cuda", (f"torch=={VERSION}",), text)


def has_nvidia_driver() -> bool:
    """Whether this machine has an NVIDIA driver loaded (or, under WSL, its stand-in)."""
    return any(Path(name).exists() for name in DRIVER_FILES)


def reachable(url: str, timeout_s: float = REACH_S) -> bool:
    """Whether the index answers soon. A thread does the asking, since a name look-up knows no timeout."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{url}/torch/", timeout=timeout_s) as response:
                answers.append(response.status == 200)
        except OSError:
            answers.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return bool(answers) and answers[0]
