"""Runs one service in this process: event loop, signals, readiness, drain and exit code. Knows no role.

SIGTERM or SIGINT drains (no new work, running work ends or moves), a second one stops at once; one that
comes while the service still starts ends it there. SIGHUP has it read keys and certificates again. The exit
code is 0 where a signal was obeyed, 1 where the service could not start, died of itself, or found its own
state broken in a callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import structlog

from shared.errors import InvariantBroken, MeshError

_YOUNG = 10_000
"""New objects, less those gone again, after which the young are looked through for garbage."""


class Service(Protocol):
    """What a role offers the process it runs in."""

    async def start(self) -> None:
        """Listen, dial, warm up. Returns once it can be reached. Raises MeshError where it cannot serve."""

    async def run(self) -> None:
        """Serve until cancelled; returns only by raising."""

    async def drain(self) -> None:
        """Take no new work; returns when the running work has ended or moved, or the drain time is over."""

    def reload(self) -> None:
        """Read keys and certificates again. Raises MeshError: what was read before stays in use."""

    async def stop(self) -> None:
        """End all that is left, also after a start that failed or was cancelled."""


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
    signals = _Signals()
    try:
        service = make()
    except MeshError as error:
        log.error("cannot start", code=error.code, reason=str(error))
        return 1
    beating = asyncio.ensure_future(_watchdog())
    code = await _start(service, signals)
    started = code is None
    if code is None:
        code = await _serve(service, signals)
    beating.cancel()
    _, failure = await asyncio.gather(beating, service.stop(), return_exceptions=True)
    if started and isinstance(failure, Exception):  # after half a start there may be nothing to stop
        log.error("stop failed", **_facts(failure))
        code = 1
    log.info("stopped", exit_code=code)
    return code


async def _start(service: Service, signals: _Signals) -> int | None:
    """None once the service can be reached; else the exit code."""
    log = structlog.get_logger()
    starting = asyncio.ensure_future(service.start())
    stopped = await _first(starting, signals)
    if stopped:
        log.info("stopped while starting", signal=stopped)
        return 0
    if failure := _failure(starting):
        log.error("cannot start", **_facts(failure))
        return 1
    settle_memory()
    notify("READY=1")
    log.info("started")
    return None


def settle_memory() -> None:
    """Leave what a start has made to itself: it lives as long as the process, and looking through it for
    garbage would stop every request for tens of milliseconds, again and again. The young are looked at less
    often: a request leaves no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)


async def _serve(service: Service, signals: _Signals) -> int:
    """Serve until a signal, then drain; the exit code."""
    log = structlog.get_logger()
    running = asyncio.ensure_future(_run(service))
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, service)
    asked = await _first(running, signals, cancel=False)
    if not asked:
        log.error("service died", **_facts(_failure(running)))
        return 1
    notify("STOPPING=1")
    log.info("draining", signal=asked)
    draining = asyncio.ensure_future(service.drain())
    again = await _first(draining, signals)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    if again:
        log.warning("drain cut short", signal=again)
    elif failure := _failure(draining):
        log.error("drain failed", **_facts(failure))
        return 1
    return 0


async def _run(service: Service) -> None:
    """Serve; ends with the first broken invariant that a callback of the loop meets.

    Other errors in callbacks are logged and end only what they happened in.
    """
    log = structlog.get_logger()
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()

    def on_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        facts = _facts(error) if error is not None else {"reason": context.get("message", "")}
        log.error("callback failed", **facts)
        if isinstance(error, InvariantBroken) and not broken.done():
            broken.set_exception(error)

    loop.set_exception_handler(on_error)
    serving = asyncio.ensure_future(service.run())
    try:
        both: set[asyncio.Future[None]] = {serving, broken}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        (broken if broken.done() else serving).result()
    finally:
        serving.cancel()
        broken.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _reload(service: Service) -> None:
    log = structlog.get_logger()
    try:
        service.reload()
    except MeshError as error:
        log.error("reload failed", **_facts(error))
    else:
        log.info("reloaded")


async def _first(task: asyncio.Future[None], signals: _Signals, *, cancel: bool = True) -> str:
    """Wait for a task or a signal: the signal's name, the task cancelled; "" where the task ended first."""
    asked = asyncio.ensure_future(signals.next())
    both: set[asyncio.Future[Any]] = {task, asked}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return ""
    if cancel:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return asked.result()


def _failure(task: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _facts(error: BaseException | None) -> dict[str, object]:
    """An error as fields of an event: its reason, and its place too where nobody foresaw it."""
    if isinstance(error, MeshError):
        return {"code": error.code, "reason": str(error)}
    if isinstance(error, OSError):
        return {"code": "os", "reason": str(error)}
    if error is None:
        return {"code": "internal", "reason": "returned though it should serve until it is cancelled"}
    return {"code": "internal", "reason": f"{type(error).__name__}: {error}", "exc_info": error}


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
    """Tell systemd (Type=notify), where it asks to be told; that it does not listen harms nothing."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


async def _watchdog() -> None:
    """Answer systemd's watchdog from the event loop, twice as often as asked: who hangs is restarted."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    period = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
    while period:
        notify("WATCHDOG=1")
        await asyncio.sleep(period)
