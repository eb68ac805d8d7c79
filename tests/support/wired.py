"""Endpoints with recording cores on this machine's loopback, and what they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from shared.policy.config import LinkPolicy
from shared.transport.endpoint import Endpoint
from shared.transport.line import LineSpec
from shared.transport.planes import PlaneCodec
from shared.transport.security import TlsFiles
from shared.wire.handshake import Identity
from shared.wire.messages import Message, Role
from shared.wire.port import OutChunk
from tests.support.recording_core import RecordingCore

QUICK = LinkPolicy(
    ping_every=0.05,
    suspect_after=0.5,
    lease=3.0,
    handshake_timeout=1.0,
    bulk_stall=1.0,
    reconnect_first=0.01,
    reconnect_most=0.1,
)
"""Everything that waits waits shortly."""


class Node:
    """An endpoint and its core."""

    def __init__(
        self,
        name: str,
        role: Role = Role.PREFILL,
        *,
        datacenter: str = "a",
        incarnation: int = 1,
        policy: LinkPolicy = QUICK,
        lines: Sequence[LineSpec] = (),
        key: bytes | None = None,
        tls: TlsFiles | None = None,
        core: RecordingCore | None = None,
        fingerprint: str = "",
        layout: bytes = b"",
        encoding: int = 0,
        codec: bool = True,
    ) -> None:
        self.name = name
        self.identity = Identity(name, role, datacenter, incarnation, fingerprint, "", layout)
        self.core = core or RecordingCore()
        self.endpoint = Endpoint(
            self.identity,
            self.core,
            policy,
            lines=lines,
            key=key,
            tls=tls,
            encoding=encoding,
            codec=PlaneCodec if codec else None,
        )
        self.port = 0

    async def listen(self) -> int:
        self.port = await self.endpoint.listen("127.0.0.1", 0)
        return self.port

    def dial(self, other: Node, *, port: int = 0, bulk: int = 0) -> None:
        self.endpoint.dial(other.name, "127.0.0.1", port or other.port, bulk)

    def send(self, node: str, *messages: Message | tuple[Message, bytes]) -> None:
        for item in messages:
            message, payload = item if isinstance(item, tuple) else (item, b"")
            self.core.send(node, message, payload)
        self.perform()

    def offer(self, node: str, *chunks: OutChunk) -> None:
        for chunk in chunks:
            self.core.offer(node, chunk)
        self.perform()

    def perform(self) -> None:
        self.endpoint.perform(self.endpoint.now())


@asynccontextmanager
async def wired(*nodes: Node) -> AsyncIterator[None]:
    """Close the nodes at the end; nothing of them may be left: no socket, no task."""
    before = _sockets()
    try:
        yield
    finally:
        await asyncio.gather(*(node.endpoint.close() for node in nodes))
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []
    assert _sockets() <= before


async def joined(one: Node, other: Node, *, bulk: int = 0, port: int = 0) -> None:
    """`one` dials `other`, which listens already or now; returns when both have the session and bulk
    connections."""
    if not other.port:
        await other.listen()
    one.dial(other, bulk=bulk, port=port)
    await one.core.until(lambda: any(peer.node == other.name for peer in one.core.sessions))
    await other.core.until(lambda: any(peer.node == one.name for peer in other.core.sessions))


def _sockets() -> int:
    """Sockets of this process; a loop's own files come and go as it likes."""
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        try:
            found += str(file.readlink()).startswith("socket:")
        except FileNotFoundError:  # the directory itself
            continue
    return found
