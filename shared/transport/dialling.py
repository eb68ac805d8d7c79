"""Keeps one peer dialled: the control connection first, then the bulk ones, each made again when it breaks.

Attempts back off; a refusal or failure is logged once until it changes. Knows sessions only by number.
"""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

import structlog

from shared.errors import MeshError
from shared.policy.config import LinkPolicy
from shared.policy.flow import Backoff
from shared.transport.tcp import Stream

_STABLE = 1.0
"""Seconds a connection lives before the next break counts as a new one."""


class DialOwner(Protocol):
    """Who makes connections and knows sessions."""

    async def connect(self, target: Target, bulk: int) -> Stream:
        """A connection whose handshake is over. Raises OSError or MeshError."""

    def control_of(self, node: str) -> Stream | None:
        """The live control connection to a node, whoever dialled it."""


class Target:
    """Whom to dial; `node` may be "" until the first Welcome names it."""

    def __init__(self, node: str, host: str, port: int, bulk: int) -> None:
        self.node = node
        self.host = host
        self.port = port
        self.bulk = bulk
        self.unconfirmed: tuple[int, int] = (0, 0)
        """(session, incarnation) of a handshake that broke before its confirmation: the peer may hold
        it."""


class Dialling:
    """The tasks that keep one target connected."""

    def __init__(self, owner: DialOwner, target: Target, policy: LinkPolicy) -> None:
        self.target = target
        self.failures = 0
        """Attempts that failed, ever."""
        self._owner = owner
        self._policy = policy
        self._log = structlog.get_logger().bind(peer=target.node, address=f"{target.host}:{target.port}")
        self._open = asyncio.Event()
        self._random = random.Random()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to dial."""
        loops = [self._keep_control(), *(self._keep_bulk(at + 1) for at in range(self.target.bulk))]
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        for task in self._tasks:
            task.add_done_callback(_tell)

    def cancel(self) -> None:
        """End the tasks soon; connections that are open stay."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """End the tasks."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _keep_control(self) -> None:
        backoff = self._backoff()
        last = ""
        while True:
            known = self._owner.control_of(self.target.node)
            if known is None:
                known, last = await self._attempt(0, last)
            if known is not None:
                self._open.set()
                await self._until_closed(known, backoff)
                self._open.clear()
            await asyncio.sleep(backoff.next(self._random.random()))

    async def _keep_bulk(self, index: int) -> None:
        backoff = self._backoff()
        last = ""
        while True:
            await self._open.wait()
            stream, last = await self._attempt(index, last)
            if stream is not None:
                await self._until_closed(stream, backoff)
            await asyncio.sleep(backoff.next(self._random.random()))

    async def _attempt(self, bulk: int, last: str) -> tuple[Stream | None, str]:
        """One attempt; the connection, and what went wrong last."""
        try:
            stream = await self._owner.connect(self.target, bulk)
        except (OSError, MeshError) as error:
            self.failures += 1
            what = str(error) or type(error).__name__
            if what != last:
                self._log.warning("cannot connect", bulk=bulk, reason=what)
            return None, what
        if last:
            self._log.info("connected after failures", bulk=bulk)
        return stream, ""

    async def _until_closed(self, stream: Stream, backoff: Backoff) -> None:
        began = asyncio.get_running_loop().time()
        await asyncio.wait([stream.closed])
        if asyncio.get_running_loop().time() - began >= min(_STABLE, self._policy.reconnect_most):
            backoff.reset()

    def _backoff(self) -> Backoff:
        return Backoff(self._policy.reconnect_first, self._policy.reconnect_most)


def _tell(task: asyncio.Task[None]) -> None:
    """A task ends only when it is cancelled: anything else is a fault here, for the loop's handler to see."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": "dialling failed", "exception": error, "task": task}
        )
