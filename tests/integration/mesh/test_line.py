"""The line between the datacenters breaks, silently or by resets: transfers resume, no answer changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.wan.proxy import WanProxy
from tests.support.live_client import Answer
from tests.support.live_judge import synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape

BLOCK_BYTES = 4096
QUICK = {"ping_every": 0.1, "suspect_after": 0.4, "reconnect_first": 0.02, "reconnect_most": 0.1}
PROMPT = [*range(3, 303)]
BLOCKS = len(PROMPT) // 4


def shape_of(road: str) -> Shape:
    return Shape(rate_mbit=6.0, rtt_ms=2.0, router=ROADS[road][1], link=QUICK)


async def a_cut_at(mesh: LiveMesh, tokens: int, landed: float, *, silent: bool) -> Answer:
    """One answer, with the line cut once that part of its KV has landed, and healed once both ends know."""
    asking = asyncio.create_task(mesh.client.streamed(PROMPT, tokens, ignore_eos=True))
    most = landed * BLOCKS * BLOCK_BYTES
    await mesh.until(lambda: mesh.count("main-0", "kv_bytes_in_total") >= most, what=mesh.held)
    mesh.wan.cut(silent=silent)
    await mesh.until(lambda: not mesh.ready())
    mesh.wan.heal()
    return await asking


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "reset"])
@pytest.mark.parametrize("road", ["P-MD", "one_shot", "catch_up"])
async def test_a_cut_in_the_middle_of_a_transfer(road: str, silent: bool, synthetic: SyntheticModel) -> None:
    async with live_mesh(synthetic, shape_of(road)) as mesh:
        tokens = 40 if road == "P-MD" else 450  # a relay's answer outlives the line
        answer = await a_cut_at(mesh, tokens, 0.4, silent=silent)
        assert answer.ids == synthetic_answer(PROMPT, tokens, mesh.vocab)
        assert answer.pdd["cut"]["count"] == 1
        assert set(answer.owners) >= {"prefill", "main_decode"}
        assert mesh.count("prefill-0", "prefills_total") == 1
        await mesh.until_ready()
        await mesh.settled()
        landed = mesh.count("main-0", "kv_bytes_in_total")
        assert landed == BLOCKS * BLOCK_BYTES  # each byte was verified once
        assert mesh.sent < 1.6 * landed  # what was on the line is sent again, not what had landed


async def test_a_cut_under_a_stream_of_main_decode(synthetic: SyntheticModel) -> None:
    """The stream pauses; its session survives, and it goes on where it was."""
    async with live_mesh(synthetic, shape_of("MD")) as mesh:
        async with mesh.client.stream(PROMPT[:50], 120, ignore_eos=True) as stream:
            for silent in (False, True):
                await stream.ids(len(stream.answer.ids) + 20)
                mesh.wan.cut(silent=silent)
                if silent:
                    await mesh.until(lambda: not mesh.ready())
                mesh.wan.heal()
                await mesh.until_ready()
            answer = await stream.rest()
        assert answer.ids == synthetic_answer(PROMPT[:50], 120, mesh.vocab)
        assert answer.pdd["cut"]["count"] == 1
        assert mesh.count("router-0", "workers_lost_total") == 0


async def test_low_hit_work_is_refused_while_the_line_is_down(synthetic: SyntheticModel) -> None:
    """And served again after: nobody waits for ever, nothing is left of what was refused."""
    router: dict[str, Any] = {**ROADS["P-MD"][1], "queue_wait": 0.5, "md_local_tokens_line_down": 8}
    async with live_mesh(synthetic, Shape(rate_mbit=6.0, router=router, link=QUICK)) as mesh:
        mesh.wan.cut()
        await mesh.until(lambda: not mesh.ready())
        response = await mesh.client.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})
        assert response.status_code in (429, 503)
        assert float(response.headers["retry-after"]) > 0
        assert not mesh.router.core.requests
        mesh.wan.heal()
        await mesh.until_ready()
        answer = await mesh.client.complete(PROMPT, 9, ignore_eos=True)
        assert answer.ids == synthetic_answer(PROMPT, 9, mesh.vocab)


async def test_the_proxy_keeps_what_comes_before_its_far_end_is_there() -> None:
    """uvloop may read from a connection before its first pause holds."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(50))
        await writer.drain()
        writer.close()

    async def once(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(range(50)))
        async with asyncio.timeout(5):
            data = await reader.readexactly(50)
        writer.close()
        await writer.wait_closed()
        return data

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, WanProxy(rate_mbit=50.0, rtt_ms=1.0) as wan:
        port = await wan.route("127.0.0.1", server.sockets[0].getsockname()[1])
        for _ in range(25):
            assert await asyncio.gather(*(once(port) for _ in range(8))) == [bytes(range(50))] * 8
