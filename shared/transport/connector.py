"""Makes connections: accepts them, and dials them up to the end of their handshake. Knows sessions by
number."""

from __future__ import annotations

import asyncio
import os

from shared.policy.config import LinkPolicy
from shared.transport.book import Book
from shared.transport.dialling import Target
from shared.transport.security import Tls, check_bind
from shared.transport.tcp import Stream, StreamOwner
from shared.wire.connection import Connection
from shared.wire.handshake import NONCE_BYTES, Dialler, Handshake, Identity, Listener


class Connector:
    """Both sides of one endpoint; every stream made here belongs to `owner`."""

    def __init__(
        self,
        identity: Identity,
        key: bytes | None,
        tls: Tls | None,
        policy: LinkPolicy,
        book: Book,
        owner: StreamOwner,
    ) -> None:
        self._identity = identity
        self._key = key
        self._tls = tls
        self._policy = policy
        self._book = book
        self._owner = owner

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Accept connections. Raises ConfigError where anyone could reach it without a key."""
        check_bind(host, key=self._key, tls=self._tls is not None)
        return await asyncio.get_running_loop().create_server(
            self._accept,
            host,
            port,
            ssl=self._tls.server if self._tls else None,
            ssl_handshake_timeout=self._policy.handshake_timeout if self._tls else None,
        )

    def control_of(self, node: str) -> Stream | None:
        """The live control connection to a node, whoever dialled it."""
        peer = self._book.peers.get(node)
        return peer.control if peer is not None else None

    async def connect(self, target: Target, bulk: int) -> Stream:
        """A connection whose handshake is over. Raises OSError or MeshError."""
        peer = self._book.peers.get(target.node)
        if bulk and peer is None:
            raise ConnectionError("no session")
        session, incarnation = target.unconfirmed
        last_seq = 0
        if peer is not None:
            session, incarnation = peer.session.number, peer.info.incarnation
            last_seq = peer.session.last_seq
        handshake = Dialler(
            self._identity,
            self._key,
            os.urandom(NONCE_BYTES),
            node=target.node,
            bulk=bulk,
            session=session,
            peer_incarnation=incarnation,
            last_seq=last_seq,
        )
        stream = self._stream(handshake, dialled=True)
        seconds = self._policy.handshake_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._open(stream, target)
        except TimeoutError as error:
            stream.abort("not connected")
            raise ConnectionError(
                f"no answer within {seconds} s ([policy.link] handshake_timeout)"
            ) from error
        except BaseException:
            if not bulk and handshake.agreed is not None:
                target.unconfirmed = (handshake.agreed.session, handshake.agreed.peer.incarnation)
            stream.abort("not connected")
            raise
        if not bulk:
            target.node = stream.opened.result().peer.node
            target.unconfirmed = (0, 0)
        return stream

    async def _open(self, stream: Stream, target: Target) -> None:
        await asyncio.get_running_loop().create_connection(
            lambda: stream,
            target.host,
            target.port,
            ssl=self._tls.client if self._tls else None,
        )
        await stream.settled()
        if not stream.opened.done() or stream.opened.cancelled():
            raise stream.failure or ConnectionError("the other side closed during the handshake")

    def _accept(self) -> Stream:
        handshake = Listener(self._identity, self._key, os.urandom(NONCE_BYTES), self._book.offer)
        return self._stream(handshake, dialled=False)

    def _stream(self, handshake: Handshake, *, dialled: bool) -> Stream:
        connection = Connection(handshake, max_chunk=self._policy.max_chunk)
        certified = self._tls is not None and self._tls.names
        return Stream(connection, self._owner, dialled=dialled, certified=certified)
