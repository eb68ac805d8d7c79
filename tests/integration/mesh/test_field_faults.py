"""Faults that were met elsewhere, step by step as they were told (docs/faults.md)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from tests.support.live_client import Answer, Refused
from tests.support.live_judge import synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape

BLOCK_BYTES = 4096
QUICK = {
    "ping_every": 0.1,
    "suspect_after": 0.4,
    "lease": 2.0,
    "reconnect_first": 0.02,
    "reconnect_most": 0.1,
}


def shape_of(road: str, **more: Any) -> Shape:
    given: dict[str, Any] = {
        "blocks": 512,
        "rate_mbit": 4.0,
        "rtt_ms": 2.0,
        "router": ROADS[road][1],
        "link": QUICK,
        "synthetic": {"step_ms": 2.0},
        **more,
    }
    return Shape(**given)


def prompt_of(number: int, length: int = 160) -> list[int]:
    return [3 + number, *range(4, 3 + length)]


async def half_way(mesh: LiveMesh, prompt: list[int]) -> asyncio.Task[Answer]:
    """A request whose KV is on the line."""
    before = mesh.count("main-0", "kv_bytes_in_total")
    asking = asyncio.create_task(mesh.client.streamed(prompt, 60, ignore_eos=True))
    await mesh.until(lambda: mesh.count("main-0", "kv_bytes_in_total") > before + 5 * BLOCK_BYTES)
    return asking


async def leave(asking: asyncio.Task[Answer]) -> None:
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize("road", ["P-MD", "one_shot"])
async def test_the_client_leaves_a_paused_transfer_and_its_sender_dies(
    road: str, synthetic: SyntheticModel
) -> None:
    """A3: main decode's blocks are free within the lease, whoever tells it what."""
    async with live_mesh(synthetic, shape_of(road)) as mesh:
        asking = await half_way(mesh, prompt_of(0))
        mesh.wan.cut(silent=True)
        await leave(asking)
        await mesh.kill("prefill-0")
        mesh.wan.heal()
        await mesh.until(mesh["main-0"].worker.idle, within=QUICK["lease"] + 2.0, what=mesh.held)
        await mesh.start("prefill-0")
        await mesh.until_ready()
        answer = await mesh.client.complete(prompt_of(1), 12, ignore_eos=True)
        assert answer.ids == synthetic_answer(prompt_of(1), 12, mesh.vocab)


async def test_blocks_of_an_aborted_transfer_go_to_the_next_request(synthetic: SyntheticModel) -> None:
    """B1: what is still on the line for the former owner is written nowhere."""
    small = {"main-0": {"pool_blocks": 64}}
    async with live_mesh(synthetic, shape_of("P-MD", node=small)) as mesh:
        for number in range(8):
            await leave(await half_way(mesh, prompt_of(2 * number)))
            prompt = prompt_of(2 * number + 1)
            answer = await mesh.client.complete(prompt, 20, ignore_eos=True)
            assert answer.ids == synthetic_answer(prompt, 20, mesh.vocab)
        assert mesh.count("main-0", "chunks_damaged_total") == 0
        assert mesh.count("router-0", "divergence_total") == 0


async def test_main_decode_is_replaced_three_times_on_its_address(synthetic: SyntheticModel) -> None:
    """B4, B5: readiness says so meanwhile, no answer is an error in a 200, and each life of it serves."""
    router = {**ROADS["P-MD"][1], "queue_wait": 0.3}
    async with live_mesh(synthetic, shape_of("P-MD", router=router)) as mesh:
        for number in range(3):
            await mesh.kill("main-0")
            await mesh.until(lambda: not mesh.router.core.ready()["ready"])
            with pytest.raises(Refused) as refused:
                await mesh.client.complete(prompt_of(number), 9, ignore_eos=True)
            assert refused.value.status in (429, 503)
            assert float(refused.value.headers["retry-after"]) > 0
            await mesh.start("main-0")
            await mesh.until_ready()
            answer = await mesh.client.complete(prompt_of(number), 9, ignore_eos=True)
            assert answer.ids == synthetic_answer(prompt_of(number), 9, mesh.vocab)
            assert answer.finish == "length"
