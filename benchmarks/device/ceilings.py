"""What the device itself reaches: bytes/s of copying, operations/s of matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.device.timing import Timer


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured, not a data sheet's."""

    bytes: float
    operations: dict[torch.dtype, float]

    def seconds(self, moved: float, operations: float, dtype: torch.dtype) -> float:
        """The least that moving and computing so much can take."""
        return max(moved / self.bytes, operations / self.operations[dtype])


def measure(device: torch.device, timer: Timer) -> Ceilings:
    """Of one device."""
    gpu = device.type == "cuda"
    source = torch.ones((1 << 30 if gpu else 1 << 26) // 4, device=device)
    target = torch.empty_like(source)
    moved = 2 * source.nbytes / timer.seconds(lambda: target.copy_(source))
    size = 8192 if gpu else 512
    found = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        left = torch.randn(size, size, device=device).to(dtype)
        found[dtype] = 2 * size**3 / timer.seconds(lambda left=left: left @ left)  # type: ignore[misc]
    return Ceilings(moved, found)
