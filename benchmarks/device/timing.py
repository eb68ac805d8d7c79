"""Seconds of something on a device: medians, with caches emptied between runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_FLUSH_BYTES = 256 << 20  # more than any last-level cache of a GPU


class Timer:
    """Times calls on one device. `runs` calls each; a warm-up comes first."""

    def __init__(self, device: torch.device, runs: int) -> None:
        self._device = device
        self._runs = runs
        gpu = device.type == "cuda"
        self._flush = torch.zeros(_FLUSH_BYTES // 4, device=device) if gpu else None

    def seconds(self, call: Callable[[], object]) -> float:
        """The median."""
        call()
        call()
        if self._flush is None:
            return statistics.median(_clocked(call) for _ in range(self._runs))
        events = []
        for _ in range(self._runs):
            self._flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize(self._device)
        milliseconds: float = statistics.median(begin.elapsed_time(end) for begin, end in events)
        return milliseconds / 1e3


def _clocked(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
