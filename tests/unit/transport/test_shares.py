"""Shares of a line that routers deal out: what they change reaches the sockets, and ends with the router."""

from __future__ import annotations

import pytest

from shared.transport.line import LineSpec
from shared.wire import messages as m
from shared.wire.messages import Role
from tests.support.recording_core import chunk_of
from tests.support.wired import Node, joined, wired

CAP = 100e6
LINE = LineSpec("wan", ("a", "b"), rate=CAP)


@pytest.mark.parametrize("datacenter", ["a", "b"])
async def test_a_share_ends_with_its_router_wherever_that_is(datacenter: str) -> None:
    router, p = Node("r", Role.ROUTER, datacenter=datacenter), Node("p", lines=[LINE])
    md = Node("md", Role.MAIN, datacenter="b", lines=[LINE])
    again = Node("r", Role.ROUTER, datacenter=datacenter, incarnation=2)
    async with wired(router, p, md, again):
        await joined(p, router)
        await joined(p, md)
        router.send("p", m.LineShare("wan", 4e6, 1000, 60_000, 40), m.Drain(True))
        await p.core.until(lambda: bool(p.core.messages))
        assert p.endpoint.line_to("b").share == 4e6
        await router.endpoint.close()
        await p.core.until(lambda: bool(p.core.lost))
        assert p.endpoint.line_to("b").share == CAP  # nobody deals any more
        await joined(p, again)  # started again, it counts its shares from 1
        again.send("p", m.LineShare("wan", 9e6, 1, 60_000, 2), m.Drain(False))
        await p.core.until(lambda: len(p.core.messages) == 2)
        assert p.endpoint.line_to("b").share == 9e6


@pytest.mark.parametrize("least", [1.0, 0.0])
async def test_a_share_that_grows_is_used_though_nothing_else_happens(least: float) -> None:
    """A debt made under one share takes hours at the rate of the next; the one after that does not wait for
    it."""
    router, p = Node("r", Role.ROUTER), Node("p", lines=[LINE])
    md = Node("md", Role.MAIN, datacenter="b", lines=[LINE])
    data = memoryview(bytes(200_000))
    async with wired(router, p, md):
        await joined(p, router)
        await joined(p, md, bulk=1)
        p.offer("md", chunk_of(data, key=1))
        await md.core.until(lambda: len(md.core.chunks) == 1)
        router.send("p", m.LineShare("wan", least, 1, 60_000), m.Drain(True))
        await p.core.until(lambda: bool(p.core.messages))
        p.offer("md", *(chunk_of(data, offset=at, key=at) for at in range(2, 6)))
        assert len(p.core.written) < 5
        router.send("p", m.LineShare("wan", CAP, 2, 60_000))
        await md.core.until(lambda: len(md.core.chunks) == 5)


async def test_a_share_that_ends_is_let_go_of_though_nothing_else_happens() -> None:
    router, p = Node("r", Role.ROUTER), Node("p", lines=[LINE])
    md = Node("md", Role.MAIN, datacenter="b", lines=[LINE])
    data = memoryview(bytes(200_000))
    async with wired(router, p, md):
        await joined(p, router)
        await joined(p, md, bulk=1)
        router.send("p", m.LineShare("wan", 1.0, 1, 300), m.Drain(True))
        await p.core.until(lambda: bool(p.core.messages))
        p.offer("md", *(chunk_of(data, offset=at, key=at) for at in range(2, 6)))
        await md.core.until(lambda: len(md.core.chunks) == 4)  # at the cap, after 0.3 s


async def test_a_line_faster_than_17_gbit_carries_chunks() -> None:
    """Its burst limit is more than a C int holds."""
    fast = LineSpec("wan", ("a", "b"), rate=100e9 / 8)
    p, md = Node("p", lines=[fast]), Node("md", Role.MAIN, datacenter="b", lines=[fast])
    async with wired(p, md):
        await joined(p, md, bulk=1)
        p.offer("md", chunk_of(memoryview(b"x")))
        await md.core.until(lambda: bool(md.core.chunks))
