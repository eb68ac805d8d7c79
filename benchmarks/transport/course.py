"""Where benchmarks of a line run: between two namespaces, or through the proxy where there can be none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.transport.loopback import Place
from benchmarks.wan.impairment import Impairment
from benchmarks.wan.namespaces import NamespaceLine, missing
from benchmarks.wan.proxy import WanProxy

_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_IPERF_PORT = 5201
_MARGIN = 0.3


@dataclass(frozen=True, slots=True)
class Course:
    """`through` turns the port that a far process listens on into the one to dial; call it from a thread.
    `line` None: loopback."""

    line: NamespaceLine | WanProxy | None
    near: Place
    far: Place
    through: Callable[[int], int]

    @property
    def engine(self) -> str:
        return "namespaces" if isinstance(self.line, NamespaceLine) else "proxy"


@contextlib.asynccontextmanager
async def course(impairment: Impairment, say: Callable[[str], None]) -> AsyncIterator[Course]:
    """A line; the same both ways. What the proxy cannot do is left out, and said."""
    why = missing()
    if not why:
        async with NamespaceLine(impairment) as line:
            near, far = Place(line.near, line.near_address), Place(line.far, line.far_address)
            yield Course(line, near, far, lambda port: port)
        return
    say(f"no namespaces here ({why}): a TCP proxy; it hides congestion control and has no loss")
    loop = asyncio.get_running_loop()
    buffer = impairment.buffer_ms
    async with WanProxy(impairment.rate_mbit, 2 * impairment.delay_ms, buffer_ms=buffer) as proxy:

        def through(port: int) -> int:
            return asyncio.run_coroutine_threadsafe(proxy.route("127.0.0.1", port), loop).result(10)

        yield Course(proxy, Place(), Place(), through)


def congestion_controls() -> list[str]:
    """Those that the kernel has."""
    return _CONTROLS.read_text().split() if _CONTROLS.exists() else []


def iperf(where: Course, streams: int, seconds: float, skip: float, congestion: str = "") -> float | None:
    """Bytes per second that iperf3 receives after the first `skip` seconds; None where it is not installed.

    On a line no more than what the line carried in that time: iperf3 also counts what had queued before.
    Raises ChildProcessError where it fails.
    """
    if shutil.which("iperf3") is None:
        return None
    words = ["-s", "-1", "--forceflush", "-p", str(_IPERF_PORT), "-B", where.far.address]
    server = subprocess.Popen(_inside(where.far, ["iperf3", *words]), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        while "listening" not in server.stdout.readline():
            if server.poll() is not None:
                raise ChildProcessError(f"iperf3 -s ended with {server.returncode}")
        port = where.through(_IPERF_PORT)
        words = ["-c", where.far.address, "-p", str(port), "-P", str(streams), "-J"]
        words += ["-t", f"{seconds:g}", "-O", f"{skip:g}", "-l", "256K"]
        words += ["-C", congestion] if congestion else []
        command = _inside(where.near, ["iperf3", *words])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            carried = _carried(where, seconds, skip)
            report = json.loads(client.communicate(timeout=30)[0])
        if "error" in report:
            raise ChildProcessError(f"iperf3: {report['error']}")
        return min(carried, float(report["end"]["sum_received"]["bits_per_second"]) / 8)
    finally:
        server.kill()
        server.communicate()


def _carried(where: Course, seconds: float, skip: float) -> float:
    """Bytes per second that the line carries forward in the middle of the next `seconds` after `skip`."""
    if where.line is None:
        return math.inf
    time.sleep(skip + _MARGIN)
    began, before = time.monotonic(), where.line.carried[0]
    time.sleep(seconds - 2 * _MARGIN)
    after = where.line.carried[0]
    return (after - before) / (time.monotonic() - began)


def _inside(place: Place, command: list[str]) -> list[str]:
    return ["ip", "netns", "exec", place.namespace, *command] if place.namespace else command
