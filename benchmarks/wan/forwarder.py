"""Moves packets between two TUN devices, in a process of its own, as two `Direction`s say.

It is started with one JSON argument, a `Task`. Commands come on standard input, a JSON array a line; each is
answered on standard output with what was carried so far. The process ends with its input.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import selectors
import sys
import time
from collections import deque
from dataclasses import dataclass

import msgspec

from benchmarks.wan.impairment import Direction, Impairment
from benchmarks.wan.resets import Flows

_LARGEST = 1 << 16
_BATCH = 64
_DEVICE_FULL = 0.0005

Cut = tuple[float, float, bool]
"""(seconds from the start, how long, silent)."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a forwarder does. `devices` are open descriptors."""

    devices: tuple[int, int]
    impairments: tuple[Impairment, Impairment]
    seed: int
    cuts: list[Cut]


class Forwarder:
    """Both directions. `devices[0]` is read for the forward direction and written for the backward one."""

    def __init__(self, task: Task) -> None:
        draw = random.Random(task.seed)
        self._devices = task.devices
        self._directions = tuple(Direction(each, draw) for each in task.impairments)
        self._flying: tuple[deque[tuple[float, bytes]], ...] = (deque(), deque())
        self._flows = (Flows(), Flows())
        self._script: list[tuple[float, int, str]] = []  # (when, order, command)
        now = time.monotonic()
        for order, (at, seconds, silent) in enumerate(task.cuts):
            heapq.heappush(self._script, (now + at, 2 * order, "cut" if silent else "reset"))
            heapq.heappush(self._script, (now + at + seconds, 2 * order + 1, "heal"))

    def run(self) -> None:
        with selectors.SelectSelector() as selector:  # epoll rounds up to milliseconds
            for at, device in enumerate(self._devices):
                os.set_blocking(device, False)
                selector.register(device, selectors.EVENT_READ, at)
            selector.register(0, selectors.EVENT_READ, None)
            while True:
                for key, _ in selector.select(self._wait(time.monotonic())):
                    if key.data is None:
                        if not self._command():
                            return
                    else:
                        self._take(key.data)
                now = time.monotonic()
                while self._script and self._script[0][0] <= now:
                    self._do(heapq.heappop(self._script)[2])
                for at in (0, 1):
                    self._deliver(at, now)

    def _wait(self, now: float) -> float | None:
        due = [flying[0][0] for flying in self._flying if flying] + [each[0] for each in self._script[:1]]
        return max(0.0, min(due) - now) if due else None

    def _take(self, at: int) -> None:
        direction, flying, flows = self._directions[at], self._flying[at], self._flows[at]
        for _ in range(_BATCH):
            try:
                packet = os.read(self._devices[at], _LARGEST)
            except BlockingIOError:
                return
            flows.saw(packet)
            due = direction.accept(time.monotonic(), len(packet))
            if due is not None:
                flying.append((due, packet))

    def _deliver(self, at: int, now: float) -> None:
        flying = self._flying[at]
        while flying and flying[0][0] <= now:
            try:
                os.write(self._devices[1 - at], flying[0][1])
            except BlockingIOError:
                flying[0] = (now + _DEVICE_FULL, flying[0][1])
                return
            except OSError:
                pass  # the device is down, or the packet is none: lost
            self._flows[1 - at].gave(flying.popleft()[1])

    def _command(self) -> bool:
        lines = os.read(0, 1 << 12)
        for line in lines.splitlines():
            name, value = msgspec.json.decode(line, type=tuple[str, float])
            self._do(name, value)
            first, second = self._directions
            counts = (first.carried, second.carried, first.dropped, second.dropped)
            os.write(1, msgspec.json.encode(counts) + b"\n")
        return bool(lines)

    def _do(self, name: str, value: float = 0.0) -> None:
        if name in ("cut", "reset"):
            for at in (0, 1):
                self._directions[at].cut = True
                self._flying[at].clear()
                if name == "reset":
                    for packet in self._flows[at].resets():
                        os.write(self._devices[at], packet)
        elif name == "heal":
            for direction in self._directions:
                direction.cut = False
        elif name == "rate":
            for direction in self._directions:
                direction.rate = value * 1e6 / 8


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    with contextlib.suppress(OSError):  # a line that waits for a processor is another line
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with contextlib.suppress(KeyboardInterrupt):
        Forwarder(task).run()


if __name__ == "__main__":
    main()
