"""Where benchmarks of a line run: between two namespaces, or through the proxy where there can be none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.transport.loopback import Place
from benchmarks.wan.impairment import Impairment
from benchmarks.wan.namespaces import MTU, NamespaceLine, missing
from benchmarks.wan.proxy import WanProxy

_LEAST_PACKETS = 5
_ETHERNET = 1500
_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


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
    """A line; the same both ways. What the proxy cannot do is left out, and said.

    Packets are as large as can be, for the processors' sake, but on lines whose buffer would hold too few of
    them: there they are as large as the internet's.
    """
    why = missing()
    if not why:
        async with NamespaceLine(impairment, mtu=packet(impairment)) as line:
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


def packet(impairment: Impairment) -> int:
    """Bytes of the line's packets at most."""
    buffer = impairment.rate_mbit * 1e6 / 8 * impairment.buffer_ms / 1e3
    return MTU if not impairment.rate_mbit or buffer >= _LEAST_PACKETS * MTU else _ETHERNET


def congestion_controls() -> list[str]:
    """Those that the kernel has."""
    return _CONTROLS.read_text().split() if _CONTROLS.exists() else []
