"""Mutual TLS: the same sessions over it, members of another authority and plain sockets refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.transport.security import Tls, TlsFiles
from shared.wire import messages as m
from shared.wire.messages import Role
from tests.support.fault_proxy import FaultProxy
from tests.support.recording_core import chunk_of
from tests.support.resuming_core import ReceivingCore, SendingCore
from tests.support.samples import RID
from tests.support.wired import Node, joined, wired

FILES = Path(__file__).parents[2] / "golden" / "tls"


def files(name: str, ca: str = "mesh") -> TlsFiles:
    return TlsFiles(str(FILES / f"{name}.pem"), str(FILES / f"{name}.key"), str(FILES / f"{ca}-ca.pem"))


MESH = files("mesh")


async def test_messages_and_chunks() -> None:
    p, md = Node("p", tls=MESH), Node("md", Role.MAIN, tls=MESH)
    pool = bytearray(300_000)
    data = os.urandom(len(pool))
    md.core.buffers = lambda chunk: memoryview(pool)[chunk.offset : chunk.offset + chunk.length]
    async with wired(p, md):
        await joined(p, md, bulk=2)
        p.send("md", *((m.Feed(RID, 1, n, m.Do.HOLD), bytes(4 * 30_000)) for n in range(5)))
        half = len(data) // 2
        p.offer(
            "md",
            chunk_of(memoryview(data)[:half], key=1),
            chunk_of(memoryview(data)[half:], offset=half, key=2),
        )
        await md.core.until(lambda: len(md.core.messages) == 5 and len(md.core.chunks) == 2)
        await p.core.until(lambda: len(p.core.written) == 2)
        assert bytes(pool) == data
        assert all(in_place and right for _, in_place, right in md.core.chunks)


async def test_a_transfer_over_cuts() -> None:
    data = os.urandom(6_000_000)
    receiver, sender = ReceivingCore(len(data), 50_000), SendingCore(data, 50_000)
    p, md = Node("p", core=sender, tls=MESH), Node("md", Role.MAIN, core=receiver, tls=MESH)
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        proxy.cut_after(700_000)
        await joined(p, md, port=proxy.port, bulk=2)
        cuts = 1
        while receiver.missing:
            if proxy.cut_at is None and cuts < 4:
                cuts += 1
                proxy.cut_after(900_000)
            count = len(receiver.chunks)
            await receiver.until(lambda seen=count: len(receiver.chunks) > seen)  # type: ignore[misc]
        assert receiver.memory == data
        await sender.until(lambda: not sender.out)
    assert sender.lost == receiver.lost == []


@pytest.mark.parametrize(
    "theirs",
    [files("stranger", "stranger"), files("stranger", "mesh"), files("mesh", "stranger"), None],
    ids=range(4),
)
async def test_only_members_of_the_same_authority(theirs: TlsFiles | None) -> None:
    md, stranger = Node("md", tls=MESH), Node("p", tls=theirs)
    async with wired(md, stranger):
        await md.listen()
        stranger.dial(md)
        for _ in range(500):
            if stranger.endpoint._dials["md"].failures >= 2:
                break
            await asyncio.sleep(0.01)
        assert stranger.endpoint._dials["md"].failures >= 2
        assert stranger.core.sessions == md.core.sessions == []


async def test_an_older_protocol_is_refused() -> None:
    md = Node("md", tls=MESH)
    async with wired(md):
        port = await md.listen()
        context = ssl.create_default_context(cafile=MESH.ca)
        context.load_cert_chain(MESH.cert, MESH.key)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="node")


async def test_tls_is_enough_to_listen_beyond_loopback() -> None:
    md = Node("md", tls=MESH)
    async with wired(md):
        assert await md.endpoint.listen("0.0.0.0", 0) > 0


async def test_renewed_files_are_taken(tmp_path: Path) -> None:
    for name in ("mesh.pem", "mesh.key", "mesh-ca.pem"):
        shutil.copy(FILES / name, tmp_path / name)
    own = TlsFiles(*(str(tmp_path / name) for name in ("mesh.pem", "mesh.key", "mesh-ca.pem")))
    md = Node("md", tls=own)
    async with wired(md):
        md.endpoint.reload_tls()
        (tmp_path / "mesh.key").write_text("no key")
        with pytest.raises(ConfigError, match=r"mesh\.key"):
            md.endpoint.reload_tls()


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (TlsFiles("/none.pem", MESH.key, MESH.ca), "tls_cert"),
        (TlsFiles(MESH.cert, "/none.key", MESH.ca), "tls_cert"),
        (TlsFiles(MESH.cert, MESH.key, "/none.pem"), "tls_ca"),
        (TlsFiles(MESH.cert, files("stranger").key, MESH.ca), "tls_cert"),
    ],
)
def test_files_that_cannot_be_used_are_named(wrong: TlsFiles, path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        Tls(wrong)
