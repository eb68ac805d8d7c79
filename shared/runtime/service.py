"""Runs one service in this process: event loop, signals, readiness, drain and exit code. Knows no role.

SIGTERM or SIGINT drains (no new work, running work ends or moves), a second one stops at once. The exit
code is 0 after a drain, 1 where the service died of itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import structlog

from shared.errors import MeshError


class Service(Protocol):
    """What a role offers the process it runs in."""

    async def start(self) -> None:
        """Listen, dial, warm up. Returns once it can be reached. Raises MeshError where it cannot serve."""

    async def run(self) -> None:
        """Serve until cancelled; returns only by raising."""

    async def drain(self) -> None:
        """Take no new work; returns when the running work has ended or moved, or the drain time is over."""

    async def stop(self) -> None:
        """End all that is left."""


def run_service(make: Callable[[], Service]) -> int:
    """Run the service that `make` builds until a signal; the process's exit code."""
    return run_loop(_supervise(make))


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine on uvloop where it is installed, else on asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _supervise(make: Callable[[], Service]) -> int:
    log = structlog.get_logger()
    stops = _Signals()
    try:
        service = make()
        await service.start()
    except MeshError as error:
        log.error("cannot start", code=error.code, reason=str(error))
        return 1
    notify("READY=1")
    running = asyncio.ensure_future(service.run())
    beating = asyncio.ensure_future(_watchdog())
    try:
        asked = asyncio.ensure_future(stops.next())
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            asked.cancel()
            log.error("service died", exc_info=running.exception())
            return 1
        notify("STOPPING=1")
        log.info("draining", signal=asked.result())
        await _drain(service, stops)
        return 0
    finally:
        beating.cancel()
        running.cancel()
        await asyncio.gather(running, beating, return_exceptions=True)
        await service.stop()
        log.info("stopped")


async def _drain(service: Service, stops: _Signals) -> None:
    """Drain until done or until a second signal."""
    draining = asyncio.ensure_future(service.drain())
    again = asyncio.ensure_future(stops.next())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not draining.done():
        draining.cancel()
    await asyncio.gather(draining, again, return_exceptions=True)


class _Signals:
    """SIGTERM and SIGINT as a queue of names."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._queue.put_nowait, signal.Signals(number).name)

    async def next(self) -> str:
        """The next signal's name."""
        return await self._queue.get()


def notify(state: str) -> None:
    """Tell systemd (Type=notify), where it asks to be told."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


async def _watchdog() -> None:
    """Answer systemd's watchdog from the event loop: a loop that hangs is restarted."""
    period = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
    while period:
        notify("WATCHDOG=1")
        await asyncio.sleep(period)
