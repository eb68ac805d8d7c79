"""Mutual TLS: the same sessions over it, members of another authority and plain sockets refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import ConfigError, Rejected
from shared.transport.dialling import Target
from shared.transport.security import Tls, TlsFiles, names_of
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
"""A certificate with the names of all nodes here."""
P, MD, RENEWED = files("p"), files("md"), files("md-renewed")
"""Each with the name of one node: `URI:pdd://p`, and twice `DNS:md`."""


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
    [
        files("stranger", "stranger"),
        files("stranger", "mesh"),
        files("mesh", "stranger"),
        files("expired"),
        None,
    ],
    ids=range(5),
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


async def test_a_node_is_who_its_certificate_names() -> None:
    p, md = Node("p", tls=P), Node("md", Role.MAIN, tls=MD)
    async with wired(p, md):
        await joined(p, md, bulk=1)
        assert [peer.node for peer in md.core.sessions] == ["p"]


@pytest.mark.parametrize(("dialler", "listener"), [("q", "md"), ("p", "q")], ids=["dialler", "listener"])
async def test_a_node_under_another_name_is_refused(dialler: str, listener: str) -> None:
    """A member of the mesh that calls itself otherwise: the pair is refused, and told both names."""
    p, md = Node(dialler, tls=P), Node(listener, Role.MAIN, tls=MD)
    async with wired(p, md):
        await md.listen()
        with pytest.raises(Rejected) as caught:
            await p.endpoint._connector.connect(Target(listener, "127.0.0.1", md.port, 0), 0)
        assert caught.value.field == "certificate"
        assert "one for node q" in str(caught.value)
        assert f"one for {'p' if dialler == 'q' else 'md'}" in str(caught.value)
        assert "subjectAltName" in str(caught.value)
        assert p.core.sessions == md.core.sessions == []


async def test_a_name_of_a_live_session_cannot_be_taken_over() -> None:
    p, md, q = Node("p", tls=P), Node("md", Role.MAIN, tls=MD), Node("p", tls=files("mesh"), incarnation=9)
    q.endpoint._connector._tls = Tls(files("md-renewed"))  # a member, but not p
    async with wired(p, md, q):
        await joined(p, md)
        with pytest.raises(Rejected, match="certificate"):
            await q.endpoint._connector.connect(Target("md", "127.0.0.1", md.port, 0), 0)
        assert md.core.lost == []


async def test_names_bind_nobody_where_the_mesh_says_so() -> None:
    one, other = replace(P, names=False), replace(MD, names=False)
    p, md = Node("any", tls=one), Node("other", Role.MAIN, tls=other)
    async with wired(p, md):
        await joined(p, md)
        assert [peer.node for peer in md.core.sessions] == ["any"]


def test_names_of_a_certificate() -> None:
    alternatives = (("DNS", "md"), ("URI", "pdd://node_1"), ("URI", "https://q"), ("IP Address", "10.0.0.1"))
    subject = ((("commonName", "p"),),)
    assert names_of({"subject": subject, "subjectAltName": alternatives}) == ("md", "node_1")
    assert names_of({"subject": subject}) == names_of({}) == names_of(None) == ()


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


def shown(port: int, own: TlsFiles) -> bytes:
    """The certificate that whoever listens shows now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(own.ca)
    context.load_cert_chain(own.cert, own.key)
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 5)) as found:
        return found.getpeercert(True) or b""


def der(own: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(own.cert).read_text())


async def test_a_certificate_is_renewed_while_a_transfer_runs(tmp_path: Path) -> None:
    """The connections that are there go on with the old one, the next are made with the new one."""
    for end in ("pem", "key"):
        shutil.copy(FILES / f"md.{end}", tmp_path / f"own.{end}")
    own = TlsFiles(str(tmp_path / "own.pem"), str(tmp_path / "own.key"), MESH.ca)
    data = os.urandom(6_000_000)
    receiver, sender = ReceivingCore(len(data), 50_000), SendingCore(data, 50_000)
    p, md = Node("p", core=sender, tls=P), Node("md", Role.MAIN, core=receiver, tls=own)
    async with wired(p, md), FaultProxy(await md.listen()) as proxy:
        proxy.cut_after(3_000_000)
        await joined(p, md, port=proxy.port, bulk=2)
        await receiver.until(lambda: len(receiver.chunks) > 10)
        assert await asyncio.to_thread(shown, md.port, P) == der(MD)
        for end in ("pem", "key"):
            shutil.copy(FILES / f"md-renewed.{end}", tmp_path / f"own.{end}")
        md.endpoint.reload_tls()
        await receiver.until(lambda: not receiver.missing)
        assert receiver.memory == data
        assert await asyncio.to_thread(shown, md.port, P) == der(RENEWED)
    assert sender.lost == receiver.lost == []


async def test_an_authority_that_was_taken_away_signs_no_members(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    shutil.copy(FILES / "stranger-ca.pem", authority)
    stranger = replace(files("stranger"), names=False)
    md = Node("md", Role.MAIN, tls=TlsFiles(MD.cert, MD.key, str(authority), names=False))
    p = Node("p", tls=TlsFiles(stranger.cert, stranger.key, MESH.ca, names=False))
    async with wired(p, md):
        await joined(p, md)
        shutil.copy(MESH.ca, authority)
        md.endpoint.reload_tls()
        with pytest.raises((OSError, ConnectionError)):
            await p.endpoint._connector.connect(Target("md", "127.0.0.1", md.port, 0), 0)


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
